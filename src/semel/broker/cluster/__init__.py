"""One broker of several: membership, the shards it owns, conflicts, and notices between brokers."""
