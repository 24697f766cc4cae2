"""Package store."""
