"""Decodes values by a schema registry and the schema id in front of them (Confluent's wire format).

    0, the id as four bytes, the value            Avro and JSON Schema
    0, the id as four bytes, indexes, the value   Protobuf: which message of the file

Only the configured address is queried, for `/schemas/ids/ID` and the subjects that a schema refers to.
Addresses inside records and schemas, and redirects, are never followed. Answers are bounded in bytes and
time, and cached. A registry that fails to answer is not queried for a while, so that a page with many records
does not wait for each of them.
"""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from semel.console.messages.avro import AvroError, AvroSchema
from semel.console.messages.proto_files import ProtoError
from semel.console.messages.protobuf import ProtobufSchema, message_indexes

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
ANSWER_BYTES_MAX: Final = 2 << 20
ANSWER_SECONDS: Final = 5.0
SOCKET_SECONDS: Final = 2.0
SCHEMAS_KEPT: Final = 500
REFERENCES_MAX: Final = 50
UNKNOWN_SECONDS: Final = 30.0
"""How long the failure to find a schema is cached: the schema may be registered later."""
DOWN_SECONDS: Final = 10.0


class SchemaProblem(ValueError):
    """A value cannot be decoded with its schema; the text says why."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value as plain data, and the schema by which it was decoded."""

    kind: str  # avro, protobuf or json-schema
    name: str
    schema_id: int
    value: Any


@dataclass(frozen=True, slots=True)
class _Schema:
    kind: str
    parsed: AvroSchema | ProtobufSchema | None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse to follow: a redirect becomes an error with its status."""


class Registry:
    """The registry at one address. Safe for several threads."""

    def __init__(self, url: str) -> None:
        """ValueError if the address is not http or https."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a schema registry has an address like http://127.0.0.1:8081, not {url!r}")
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._authorization: str | None = None
        if parts.username is not None:
            pair = f"{parts.username}:{parts.password or ''}"
            self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        self._lock = threading.Lock()
        self._schemas: OrderedDict[int, tuple[_Schema | str, float]] = OrderedDict()
        self._down_until = 0.0
        self._down_because = ""

    def decode(self, data: bytes) -> Decoded | None:
        """Decode a value; None if it has no schema id. SchemaProblem if its schema cannot decode it."""
        if len(data) < PREFIX_BYTES or data[0] != MAGIC:
            return None
        schema_id = int.from_bytes(data[1:PREFIX_BYTES], "big")
        schema = self._schema(schema_id)
        payload = data[PREFIX_BYTES:]
        try:
            if isinstance(schema.parsed, AvroSchema):
                return Decoded("avro", schema.parsed.name, schema_id, schema.parsed.decode(payload))
            if isinstance(schema.parsed, ProtobufSchema):
                indexes, at = message_indexes(payload)
                message = schema.parsed.message(indexes)
                value = schema.parsed.decode(payload[at:], message)
                return Decoded("protobuf", message.name, schema_id, value)
            return Decoded("json-schema", "JSON Schema", schema_id, json.loads(payload))
        except (AvroError, ProtoError, ValueError, RecursionError) as error:
            raise SchemaProblem(f"schema {schema_id} ({schema.kind}) does not fit: {error}") from None

    def _schema(self, schema_id: int) -> _Schema:
        now = time.monotonic()
        with self._lock:
            known = self._schemas.get(schema_id)
            if known is not None and known[1] > now:
                self._schemas.move_to_end(schema_id)
                return _usable(known[0])
            if now < self._down_until:
                raise SchemaProblem(f"the schema registry does not answer: {self._down_because}")
        found: _Schema | str
        try:
            found, until = self._load(schema_id), float("inf")
        except SchemaProblem as problem:
            # Keep only the text: an exception that is raised again and again keeps the data of every raise.
            found, until = str(problem), now + UNKNOWN_SECONDS
        with self._lock:
            self._schemas[schema_id] = (found, until)
            while len(self._schemas) > SCHEMAS_KEPT:
                self._schemas.popitem(last=False)
        return _usable(found)

    def _load(self, schema_id: int) -> _Schema:
        answer = self._get(f"/schemas/ids/{schema_id}", f"schema {schema_id}")
        kind = str(answer.get("schemaType", "AVRO")).lower()
        text = str(answer.get("schema", ""))
        try:
            if kind == "avro":
                return _Schema("avro", AvroSchema(text, self._references(answer)))
            if kind == "protobuf":
                return _Schema("protobuf", ProtobufSchema(text, self._references(answer)))
        except (AvroError, ProtoError, KeyError, TypeError, ValueError) as error:
            raise SchemaProblem(f"schema {schema_id} cannot be read: {error}") from None
        if kind == "json":
            return _Schema("json-schema", None)
        raise SchemaProblem(f"schema {schema_id} is of the unknown type {kind!r}")

    def _references(self, answer: dict[str, Any]) -> list[str]:
        """Return the schemas that a schema refers to, directly or not, the innermost first."""
        found: dict[tuple[str, int], str] = {}
        to_come = list(answer.get("references") or [])
        while to_come:
            each = to_come.pop()
            key = (str(each["subject"]), int(each["version"]))
            if key in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise SchemaProblem(f"the schema refers to more than {REFERENCES_MAX} others")
            path = f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}"
            other = self._get(path, f"{key[0]} version {key[1]}")
            found[key] = str(other.get("schema", ""))
            to_come += other.get("references") or []
        return list(reversed(found.values()))

    def _get(self, path: str, what: str) -> dict[str, Any]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with self._opener.open(request, timeout=SOCKET_SECONDS) as response:
                answer = json.loads(_read(response))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise SchemaProblem(f"{what} is not in the registry") from None
            raise SchemaProblem(f"the schema registry answered {error.code} for {what}") from None
        except (OSError, ValueError, RecursionError) as error:
            with self._lock:
                self._down_until = time.monotonic() + DOWN_SECONDS
                self._down_because = str(getattr(error, "reason", error))
            raise SchemaProblem(f"the schema registry does not answer: {self._down_because}") from None
        if not isinstance(answer, dict):
            raise SchemaProblem(f"the schema registry answered no object for {what}")
        return answer


def _usable(found: _Schema | str) -> _Schema:
    if isinstance(found, str):
        raise SchemaProblem(found)
    return found


def _read(response: Any) -> bytes:
    """Read an answer within a size and a time, however slowly it comes."""
    parts, size, deadline = [], 0, time.monotonic() + ANSWER_SECONDS
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
        if time.monotonic() > deadline:
            raise ValueError(f"the answer took more than {ANSWER_SECONDS:g} seconds")
    return b"".join(parts)
