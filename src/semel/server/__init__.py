"""The network layer: listeners, connections, the metrics page, and the broker process.

Start reading at `connection` (one client), then `server` (all of them), then `run` (a process). This package
does not interpret requests; `semel.handlers` does.
"""
