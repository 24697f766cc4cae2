"""Work that no client requests: timeouts, retention, compaction, and the search for damage."""
