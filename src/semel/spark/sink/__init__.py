"""The sink: attempts, decisions, and what a new query has to prove before its first decision."""
