"""The embedded store: a write-ahead log, a SQLite ledger and chunk files in one directory."""
