"""The store of a cluster: a ledger in PostgreSQL, for any number of brokers. Needs ``semel[cluster]``."""
