"""The store that several brokers share: a ledger in PostgreSQL, bytes in an object store."""
