"""TLS for listeners: the broker's certificate, the verification of clients, and the handshakes.

The files are reloaded when they change, so a certificate can be renewed without a restart: open connections
stay, new connections get the new certificate. If the new files are unusable, the error is logged and the
previous certificates stay in use.

`TlsDoor` does the handshakes, each with the current certificates, and reports why a handshake failed.
"""

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

from semel.config import Settings
from semel.pem_files import check_file, file_risks
from semel.server.logs import event
from semel.server.sockets import Address

log = logging.getLogger("semel.server")

HANDSHAKE_SECONDS: Final = 10.0
SHUTDOWN_SECONDS: Final = 5.0
ACCEPT_PAUSE_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 10.0
"""How often the files are checked for changes."""

SOUND_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Forward secrecy and authenticated encryption: no static RSA, no CBC."""
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
TLS_1_3_PREFIXES: Final = ("TLS_AES_", "TLS_CHACHA20_")


class ServerTls:
    """The certificates of this broker, reloaded when their files change."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._stamps()
        self.context = server(settings)
        """The context for the next handshake."""

    def look(self) -> None:
        """Reload the files if they have changed."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        # Set before the files are read, so that the next check finds a change made meanwhile.
        self._seen = stamps
        try:
            self.context = server(self._settings)
        except ValueError as error:
            event(log, logging.ERROR, "new certificates cannot be used, the old ones stay", detail=error)
        else:
            event(log, logging.INFO, "certificates were read again")
            self.warn()

    def warn(self) -> None:
        """Log warnings about a usable certificate and its key, such as an expired certificate."""
        certificate = self._settings.ssl_certificate_location
        key = self._settings.ssl_key_location or certificate
        for sentence, fields in file_risks(certificate, key, time.time()):
            event(log, logging.WARNING, sentence, **fields)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        settings = self._settings
        names = (settings.ssl_certificate_location, settings.ssl_key_location, settings.ssl_ca_location)
        stamps: list[tuple[int, int, int] | None] = []
        for name in filter(None, names):
            try:
                found = Path(name).stat()
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(None)
        return stamps


def server(settings: Settings) -> ssl.SSLContext:
    """Return a context with the broker's certificate. ValueError names a setting that is missing or wrong."""
    if not settings.ssl_certificate_location:
        raise ValueError("a listener with ssl:// needs the setting ssl.certificate.location, a PEM file")
    for name in ("ssl.certificate.location", "ssl.key.location", "ssl.ca.location"):
        if path := getattr(settings, name.replace(".", "_")):
            check_file(name, path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _choose_protocols(context, settings.ssl_enabled_protocols)
    _choose_ciphers(context, settings.ssl_cipher_suites)
    try:
        context.load_cert_chain(
            settings.ssl_certificate_location, settings.ssl_key_location or None, _no_password
        )
    except OSError as error:
        raise ValueError(
            f"ssl.certificate.location {settings.ssl_certificate_location} and its key do not go together: "
            f"{error}"
        ) from None
    wanted = settings.ssl_client_auth or ("required" if settings.ssl_ca_location else "none")
    if wanted != "none" and not settings.ssl_ca_location:
        raise ValueError(f"ssl.client.auth={wanted} needs the setting ssl.ca.location, a PEM file")
    if settings.ssl_ca_location:
        try:
            context.load_verify_locations(settings.ssl_ca_location)
        except OSError as error:
            reason = f"ssl.ca.location {settings.ssl_ca_location} has no certificates: {error}"
            raise ValueError(reason) from None
    context.verify_mode = CLIENT_CERTIFICATES[wanted]
    return context


def _choose_protocols(context: ssl.SSLContext, names: str) -> None:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen or any(name not in PROTOCOLS for name in chosen):
        raise ValueError(f"ssl.enabled.protocols is a list of {' and '.join(PROTOCOLS)}, not {names!r}")
    versions = [PROTOCOLS[name] for name in chosen]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _choose_ciphers(context: ssl.SSLContext, names: str) -> None:
    chosen = [name.strip() for name in names.replace(":", ",").split(",") if name.strip()]
    # Python cannot select cipher suites of TLS 1.3; all of them are sound.
    older = [_openssl_name(name) for name in chosen if not name.startswith(TLS_1_3_PREFIXES)]
    if chosen and not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        for name in older:
            context.set_ciphers(name)  # one by one: OpenSSL ignores unknown names in a list
        context.set_ciphers(":".join(older) or SOUND_CIPHERS)
    except ssl.SSLError:
        raise ValueError(f"ssl.cipher.suites has a name that OpenSSL does not know: {names!r}") from None


def _openssl_name(name: str) -> str:
    """Return `ECDHE-RSA-AES128-GCM-SHA256` for Java's `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`."""
    if not name.startswith("TLS_"):
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("_SHA256")
    cipher = cipher.replace("_CBC", "")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _no_password() -> NoReturn:
    """Refuse an encrypted key; without this callback, OpenSSL would prompt on the terminal."""
    raise ValueError("the key of ssl.key.location is encrypted; store it without a password (mode 0600)")


async def look_for_certificates(tls: ServerTls) -> NoReturn:
    """Check the files for changes periodically."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        tls.look()


class Hall(Protocol):
    """Counts the clients of a server, from the moment they connect."""

    def arrive(self, peer: Address) -> tuple[str | None, float]:
        """Count a client. Return why to refuse it, and after how many seconds to close it (0: never)."""

    def gone(self, peer: Address) -> bool:
        """Note that the handshake of a client is over. Return whether the client was still counted."""


class TlsDoor:
    """Accepts the clients of one listener and does their TLS handshakes.

    An `asyncio.Server` does handshakes too, but does not report failed handshakes, and cannot change its
    certificate.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        tls: ServerTls,
        admit: Callable[[], asyncio.Protocol],
        refused: Callable[[str, Exception], None],
        hall: Hall,
    ) -> None:
        # Duplicates, because the `asyncio.Server` that bound the sockets closes its own.
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in sockets]
        self._tls = tls
        self._admit = admit
        self._refused = refused
        self._hall = hall
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    def open(self, backlog: int) -> None:
        """Start to accept clients."""
        for each in self._sockets:
            each.setblocking(False)
            each.listen(backlog)
            self._accepting.append(asyncio.get_running_loop().create_task(self._accept(each)))

    def close(self) -> None:
        """Stop accepting clients. Handshakes in progress may finish."""
        for task in self._accepting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Cancel the handshakes and close the sockets."""
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._accepting, *self._handshakes, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:  # out of descriptors, or the client has disconnected
                log.warning("cannot accept a client: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            refused, wait_seconds = self._hall.arrive(address)
            if refused is not None:
                self._refused(str(address[0]), ConnectionRefusedError(refused))
                client.close()
                continue
            work = self._turn_away if wait_seconds else self._shake_hands
            task = loop.create_task(work(client, address, wait_seconds))
            self._handshakes.add(task)
            task.add_done_callback(partial(self._settled, address))

    def _settled(self, address: Address, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._hall.gone(address)

    async def _turn_away(self, client: socket.socket, address: Address, seconds: float) -> None:
        """Close a client after a delay, so that it does not connect again at once."""
        try:
            await asyncio.sleep(seconds)
        finally:
            client.close()
        self._refused(str(address[0]), ConnectionRefusedError("too many connections in a short time (quota)"))

    async def _shake_hands(self, client: socket.socket, address: Address, _: float) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._admit,
                client,
                ssl=self._tls.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # TLS errors are subclasses
            self._refused(str(address[0]), error)
            client.close()
