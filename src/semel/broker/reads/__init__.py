"""What readers see: published partitions, and fetches over them."""
