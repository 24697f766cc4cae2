"""A partition's log: appended batches, its start, idempotence, and compaction."""
