"""The ledger in PostgreSQL, for any number of brokers. Needs ``semel[postgres]``."""
