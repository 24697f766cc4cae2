"""Spark's Python processes, made to end quietly when Spark has closed their connection.

Spark closes the connections of idle workers when it stops, that of a worker whose task is cancelled, and that
of a source when its query ends. The processes take that for a failure, and print it with a traceback unless
Spark kills them first.

A worker is forked from a daemon, and calls a function of the daemon for each task. `end_quietly` replaces the
function in a worker that has loaded this package. Spark can also start this module as its daemon, through
`spark.python.daemon.module`, which includes the workers that run only functions of others.
"""

import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

#: Calls a worker for one task, and returns its exit code: 0 if it may get another one.
Worker = Callable[[socket.socket, bool], int]

DAEMON: Final = "pyspark.daemon"
#: The module of the process that plans the batches of a streaming source.
SOURCE_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
CLOSED: Final = 1


def end_quietly() -> None:
    """Replace the function, if this process is a worker of Spark's own daemon."""
    main: Any = sys.modules["__main__"]
    if _is_main(DAEMON) and not hasattr(main.worker, "__wrapped__"):
        main.worker = _quiet(main.worker)


def end_source_quietly() -> None:
    """End this process if it is that of a streaming source, and Spark has closed its connection.

    A source calls this when Spark stops it.
    """
    if _is_main(SOURCE_RUNNER) and isinstance(sys.exception(), (EOFError, ConnectionError)):
        os._exit(CLOSED)


def _is_main(module: str) -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == module


def _quiet(original: Worker) -> Worker:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        try:
            # An idle worker would report the end of the connection as a failed task.
            if not connection.recv(1, socket.MSG_PEEK):
                return CLOSED
            return original(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return CLOSED  # The task was cancelled, and Spark no longer reads its result.

    worker.__wrapped__ = original  # type: ignore[attr-defined]
    return worker


if __name__ == "__main__":
    from pyspark import daemon

    daemon.worker = _quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
