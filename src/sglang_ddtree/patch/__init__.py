"""Versioned patches for an SGLang that does not find or load this package's entry point."""
