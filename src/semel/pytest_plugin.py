"""Pytest plugin."""
