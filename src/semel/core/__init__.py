"""Package core."""
