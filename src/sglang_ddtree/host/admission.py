"""Refuses, request by request, what a tree step does not do: HTTP 400 that names the field."""

from __future__ import annotations


def install() -> None:
    """Declare the hook at the place where the scheduler asks the DFlash family about a request."""
