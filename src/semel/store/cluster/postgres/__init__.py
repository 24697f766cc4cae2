"""Connections to PostgreSQL: which server is used, what it must prove, and the tables."""
