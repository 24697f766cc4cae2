"""Programs for developers of Semel."""
