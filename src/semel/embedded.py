"""A broker inside this process: for tests, for notebooks, for programs that want a log of their own.

    with semel.embedded() as broker:
        client = SomeKafkaClient(broker.bootstrap_servers)

It is the same broker as in `semel serve`, on a thread with its own event loop, and any Kafka client reaches
it over a real socket on 127.0.0.1. Without a directory everything is in memory and lost at the end; with one,
the data is as durable as that of a service, and `semel serve` can use the directory later.

After `close` no thread, socket or unrequested file remains. `start` raises an error that prevents the start;
if the broker fails later, `bootstrap_servers` and `close` raise the error.

This module is imported with the package, so it loads the broker only when one is started.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import asyncio

    from semel.core.security.users import ScramCredential
    from semel.server.server import Server

__all__ = ["DEFAULTS", "Embedded", "EmbeddedError", "embedded"]

#: Differences from `semel serve`, because tests expect them; explicit settings win.
DEFAULTS: Final[Mapping[str, Any]] = {
    # Tests write to a topic without creating it, as with Kafka's own defaults.
    "auto.create.topics.enable": True,
    # A group starts at once instead of waiting three seconds for more members.
    "group.initial.rebalance.delay.ms": 0,
    # Tests may use short sessions, and members learn of each other quickly.
    "group.min.session.timeout.ms": 10,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
}

STOP_SECONDS: Final = 60.0


class EmbeddedError(RuntimeError):
    """The embedded broker could not start, or had to stop; the text says why."""


class Embedded:
    """A broker on a background thread. Use it in a `with`, or call `start` and `close`."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.host = "127.0.0.1"
        self._settings = {**DEFAULTS, **(settings or {})}
        self._wanted_port = port
        self._users = dict(users or {})
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._port = 0
        self._failure: str | None = None
        self._cause: BaseException | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.close()
        except EmbeddedError:
            # An error of `close` must not hide the caller's exception.
            if error is None:
                raise

    def start(self) -> Self:
        """Start the broker and wait until it serves. EmbeddedError if it cannot."""
        if self._thread is not None:
            raise EmbeddedError("the embedded broker is already running")
        # Unknown settings are the caller's mistake, so they are reported here and not in the thread.
        from semel.config import Settings

        settings = Settings.of(self._settings)
        self._failure = self._cause = None
        self._changed.clear()
        self._thread = threading.Thread(target=self._run, args=(settings,), name="semel broker", daemon=True)
        self._thread.start()
        self._changed.wait()
        if self._server is None:
            self._thread.join(STOP_SECONDS)
            self._thread = None
            raise EmbeddedError(f"the embedded broker did not start: {self._failure}") from self._cause
        return self

    def close(self) -> None:
        """Stop the broker and wait until its thread has ended. EmbeddedError if the broker had failed."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        loop, server = self._loop, self._server
        if loop is not None and server is not None and thread.is_alive():
            # The loop may close between the check and the call, if the broker stops by itself.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(server.request_stop)
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            raise EmbeddedError(f"the embedded broker did not stop within {STOP_SECONDS:g} s")
        self._loop = self._server = None
        if self._failure is not None:
            raise EmbeddedError(
                f"the embedded broker stopped after a failure: {self._failure}"
            ) from self._cause

    def advance(self, seconds: float) -> None:
        """Advance the broker's clock, and return when all work that became due is done.

        Sessions, transactions and acquisition locks time out, retention deletes old records, and unused state
        expires, as if the time had passed. The sessions of connected clients time out, too.
        """
        import asyncio

        if seconds < 0:
            raise ValueError(f"time cannot be moved back: {seconds:g} seconds")
        self.port  # noqa: B018 - raises if the broker does not run
        assert self._loop is not None
        assert self._server is not None
        work = self._server.broker.advance(round(seconds * 1000))
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            raise EmbeddedError(f"the clock of the embedded broker was not advanced: {error}") from error

    @property
    def port(self) -> int:
        """The port that the broker listens on."""
        if self._thread is None or self._server is None:
            raise EmbeddedError("the embedded broker is not running")
        if self._server.failure is not None:
            raise EmbeddedError("the embedded broker stopped after a failure") from self._server.failure
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: the value of their setting `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def _run(self, settings: Any) -> None:
        """The thread: runs the broker from start to stop."""
        try:
            from semel.server.listener import ListenerConfig
            from semel.server.run import run, serve

            name = "SASL_PLAINTEXT" if self._users else "PLAINTEXT"
            listener = ListenerConfig(name, self.host, self._wanted_port, has_sasl=bool(self._users))
            code = run(
                serve(
                    *(settings, [listener], self.directory, None, self._ready, self._failed),
                    users=[_credential(*each) for each in self._users.items()],
                )
            )
            if code and self._failure is None:
                self._cause = self._server.failure if self._server is not None else None
                self._failure = str(self._cause or f"exit code {code}")
        except BaseException as error:  # noqa: BLE001 - `start` and `close` report every error
            self._failure, self._cause = str(error), error
        finally:
            self._changed.set()

    def _ready(self, server: "Server") -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._port = next(iter(server.ports.values()))
        self._server = server
        self._changed.set()

    def _failed(self, code: int, text: str) -> None:
        self._failure = text


def _credential(user: str, password: str) -> "ScramCredential":
    from semel.core.security.users import ITERATIONS_MIN, MECHANISMS, credential_of_password

    return credential_of_password(user, MECHANISMS[0], os.urandom(16), ITERATIONS_MIN, password)


def embedded(
    directory: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    port: int = 0,
    users: Mapping[str, str] | None = None,
) -> Embedded:
    """Return a broker inside this process, in memory or over a directory, on a free port of 127.0.0.1.

    Settings have Kafka's dotted names, for example `{"num.partitions": 4}`. Those in `DEFAULTS` suit tests:
    topics are created on first use, and groups start at once.

        with semel.embedded() as broker:
            print(broker.bootstrap_servers)

    With `users`, a mapping of names to passwords, clients authenticate by SCRAM-SHA-256
    (`security.protocol=SASL_PLAINTEXT`); with `{"semel.authorizer": "acl", "super.users": "User:admin"}` they
    also need ACLs.

    Without `with`: `broker = semel.embedded().start()`, and `broker.close()` at the end.
    """
    return Embedded(directory, settings=settings, port=port, users=users)
