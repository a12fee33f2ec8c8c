"""DDTREE: draft-tree speculative decoding for SGLang with DFlash drafters."""

__version__ = "0.1.0"
