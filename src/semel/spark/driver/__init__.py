"""The driver: its Java, its session, and how its first queries start."""
