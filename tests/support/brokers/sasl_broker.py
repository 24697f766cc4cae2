"""A broker that only authenticates: the server side of SASL by the RFCs, then Metadata.

It answers ApiVersions at any time. It closes the connection on any other request before SASL has ended.
"""

import base64
import hashlib
import hmac
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Generator
from typing import Any, Self

from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_request_header, encode_response
from semel.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 3, 17, 18, 36
SIZE = struct.Struct(">i")
ITERATIONS = 4_096
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

#: What a mechanism answers in each round, and whether the client is authenticated; None: not decided yet.
Rounds = Generator[tuple[bytes, bool | None], bytes, None]
BEGIN = (b"", None)


class SaslBroker:
    """A broker with one user. `authenticated` counts the connections that have passed."""

    def __init__(
        self,
        username: str,
        password: str,
        mechanisms: tuple[str, ...] = ("PLAIN", *DIGESTS),
        *,
        authenticate_version: int = 2,
        session_lifetime_ms: int = 0,
        is_impostor: bool = False,
    ) -> None:
        self.username, self.password, self.mechanisms = username, password, mechanisms
        self.authenticate_version = authenticate_version
        self.session_lifetime_ms = session_lifetime_ms
        self.is_impostor = is_impostor
        """Accept every SCRAM client, as a server would that does not know the password."""
        self.authenticated = 0
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler(), False)
        self._server.daemon_threads = True
        self._server.server_bind()
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), port

    @property
    def bootstrap(self) -> str:
        return "{}:{}".format(*self.address)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _Session(broker, self.request).run()

        return Handler

    def rounds(self, mechanism: str) -> Rounds:
        return self._plain() if mechanism == "PLAIN" else self._scram(DIGESTS[mechanism])

    def _plain(self) -> Rounds:
        said = yield BEGIN
        yield b"", said == f"\0{self.username}\0{self.password}".encode()

    def _scram(self, digest: str) -> Rounds:
        """Run RFC 5802 as the server, which knows only keys derived from the password."""
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(digest, self.password.encode(), salt, ITERATIONS)
        stored_key = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
        server_key = hmac.digest(salted, b"Server Key", digest)
        said = (yield BEGIN).decode()
        bare = said.removeprefix("n,,")
        fields = dict(each.split("=", 1) for each in bare.split(","))
        nonce = fields["r"] + base64.b64encode(os.urandom(12)).decode()
        first = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
        final = (yield first.encode(), None).decode()
        without_proof, _, proof = final.rpartition(",p=")
        signed = f"{bare},{first},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, digest)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        is_known = hashlib.new(digest, client_key).digest() == stored_key
        is_named = fields["n"].replace("=2C", ",").replace("=3D", "=") == self.username
        signature = base64.b64encode(hmac.digest(server_key, signed, digest))
        yield b"v=" + signature, (is_known and is_named) or self.is_impostor


class _Session:
    """One connection."""

    def __init__(self, broker: SaslBroker, client: socket.socket) -> None:
        self._broker = broker
        self._client = client
        self._rounds: Rounds | None = None
        self._is_known: bool | None = False

    def run(self) -> None:
        while (frame := self._receive()) is not None:
            header, offset = decode_request_header(frame)
            request = APIS[header.api_key].request.decode(frame, header.api_version, offset)
            answer = self._answer(header.api_key, request)
            if answer is None:
                return
            parts = encode_response(answer, header.api_version, header.correlation_id)
            self._client.sendall(b"".join(bytes(part) for part in parts))

    def _receive(self) -> bytes | None:
        size = self._exactly(SIZE.size)
        return None if size is None else self._exactly(SIZE.unpack(size)[0])

    def _exactly(self, length: int) -> bytes | None:
        data = b""
        while len(data) < length:
            more = self._client.recv(length - len(data))
            if not more:
                return None
            data += more
        return data

    def _answer(self, api_key: int, request: Any) -> Any:
        broker = self._broker
        match api_key:
            case 18:
                served = {METADATA: 12, SASL_HANDSHAKE: 1, API_VERSIONS: 4}
                served[SASL_AUTHENTICATE] = broker.authenticate_version
                keys = [
                    ApiVersion(api_key=key, min_version=0, max_version=last) for key, last in served.items()
                ]
                return ApiVersionsResponse(api_keys=keys)
            case 17:
                if request.mechanism not in broker.mechanisms:
                    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
                    return SaslHandshakeResponse(error_code=code, mechanisms=list(broker.mechanisms))
                self._rounds = broker.rounds(request.mechanism)
                next(self._rounds)
                return SaslHandshakeResponse(mechanisms=list(broker.mechanisms))
            case 36 if self._rounds is not None:
                return self._authenticate(self._rounds, bytes(request.auth_bytes))
            case 3 if self._is_known:
                host, port = broker.address
                return MetadataResponse(brokers=[MetadataResponseBroker(node_id=0, host=host, port=port)])
        return None

    def _authenticate(self, rounds: Rounds, said: bytes) -> SaslAuthenticateResponse:
        answer, self._is_known = rounds.send(said)
        if self._is_known is False:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="Authentication failed."
            )
        self._broker.authenticated += bool(self._is_known)
        return SaslAuthenticateResponse(
            auth_bytes=answer, session_lifetime_ms=self._broker.session_lifetime_ms
        )
