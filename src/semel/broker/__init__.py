"""The broker: the commit loop, reads, housekeeping and metrics. Start reading at `broker`."""
