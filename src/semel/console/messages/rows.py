"""Formats records as plain data for templates, events and JSON, bounded in size whatever a record holds."""

import shlex
from typing import Any
from urllib.parse import quote

from semel.console.messages.decoding import Decoding, Shown
from semel.console.messages.limits import (
    HEADERS_READ_MAX,
    HEADERS_SHOWN,
    KEY_SHOWN_BYTES,
    VALUE_SHOWN_BYTES,
    WHOLE_SHOWN_BYTES,
)
from semel.console.messages.marks import Mark
from semel.console.messages.reading import MarkedRecord
from semel.printable import printable
from semel.times import time_text

EXPLAINED = {
    Mark.PLAIN: "not part of a transaction",
    Mark.COMMITTED: "its transaction is committed",
    Mark.OPEN: "its transaction is open: readers of committed records wait for its end",
    Mark.ABORTED: "its transaction is aborted: readers of committed records never see it",
    Mark.UNDECIDED: "its transaction ended further on in the log than was looked",
    Mark.CONTROL: "a marker that ends a transaction",
}


def row(marked: MarkedRecord, decoding: Decoding) -> dict[str, Any]:
    """Return a record as one line of a list."""
    record = marked.record
    return {
        **_head(marked),
        "key": _shown(decoding.show(record.key, KEY_SHOWN_BYTES)),
        "value": _shown(decoding.show(record.value, VALUE_SHOWN_BYTES)),
        "headers": [
            {"name": printable(name[:KEY_SHOWN_BYTES]), **_shown(decoding.show(content, KEY_SHOWN_BYTES))}
            for name, content in record.headers[:HEADERS_SHOWN]
        ],
    }


def whole(marked: MarkedRecord, decoding: Decoding) -> dict[str, Any]:
    """Return a record for a page of its own."""
    record = marked.record
    return {
        **_head(marked),
        "key": _shown(decoding.show(record.key, WHOLE_SHOWN_BYTES, pretty=True)),
        "value": _shown(decoding.show(record.value, WHOLE_SHOWN_BYTES, pretty=True)),
        "headers": [
            {"name": printable(name[:1024]), **_shown(decoding.show(content, VALUE_SHOWN_BYTES * 4))}
            for name, content in record.headers[:HEADERS_READ_MAX]
        ],
    }


def _head(marked: MarkedRecord) -> dict[str, Any]:
    record = marked.record
    return {
        "topic": marked.topic,
        "partition": marked.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        "mark": marked.mark.value,
        "explained": EXPLAINED[marked.mark],
        "producer_id": marked.producer_id if marked.producer_id >= 0 else None,
        "producer_epoch": marked.producer_epoch if marked.producer_id >= 0 else None,
        "codec": marked.codec,
        "size": record.size_bytes,
        "header_count": record.header_count,
        "note": marked.note,
        "is_unreadable": marked.is_unreadable,
        "address": address(marked.topic, marked.partition, record.offset),
    }


def address(topic: str, partition: int, offset: int) -> str:
    """Return the address of a record's page."""
    return f"/topics/{quote(topic, safe='')}/messages/{partition}/{offset}"


def _shown(shown: Shown) -> dict[str, Any]:
    return {
        "text": shown.text,
        "kind": shown.kind,
        "size": shown.size_bytes,
        "is_truncated": shown.is_truncated,
        "schema": shown.schema,
        "note": shown.note,
    }


def commands(bootstrap: str, topic: str, partition: int, offset: int, *, committed: bool) -> dict[str, str]:
    """Return commands of `semel` and `kcat` that show the same record."""
    place, where = f"--partition {partition} --offset {offset} --max 1", shlex.quote(bootstrap)
    name = shlex.quote(topic)
    level = "read_committed" if committed else "read_uncommitted"
    return {
        "semel": f"semel consume {name} --bootstrap {where} {place} --format full --isolation {level}",
        "kcat": f"kcat -C -b {where} -t {name} -p {partition} -o {offset} -c 1 -e -X isolation.level={level}",
    }
