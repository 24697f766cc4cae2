"""Consumers: fetching, offsets, groups, and reading in commit order."""
