"""The edge to the network: listeners, connections, the metrics page, and the way a broker process runs.

Start reading at `connection` (one client), then `server` (all of them), then `run` (a process). Nothing
in here knows what a request means; that is `semel.handlers`.
"""
