"""The source: which offsets a batch reads, and reading them."""
