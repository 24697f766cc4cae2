"""Declared pipelines: running, watching and verifying them."""
