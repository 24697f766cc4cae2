"""Finds transactions that hang: open in a partition, and unknown to every coordinator."""

import threading
from collections.abc import Generator
from typing import Any

from semel.client import Client, ErrorCode, KafkaError, UnsupportedRequest, blocking
from semel.console.rendering import iso


def find_hanging(
    client: Client, stop: threading.Event, only: str | None
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Look into every topic, or one; report each topic and each finding."""
    names = [only] if only else sorted(each.name for each in client.describe().topics)
    found = skipped = 0
    for number, name in enumerate(names):
        if stop.is_set():
            return
        yield "progress", {"done": number, "total": len(names), "at": name}
        try:
            hanging = blocking.hanging_in(client, name)
        except UnsupportedRequest:
            yield "finding", {"text": "This broker does not describe producers (DescribeProducers)."}
            return
        except KafkaError as error:
            if error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ):
                raise
            skipped += 1  # It was deleted meanwhile, or its producers are not for this principal.
            continue
        for each in hanging:
            found += 1
            yield "finding", _finding(each)
    note = f" {skipped} topics could not be read." if skipped else ""
    text = f"{found} transactions hang." if found else f"No transaction hangs in {len(names)} topics."
    yield "result", {"good": not found, "text": text + note, "done": len(names), "total": len(names)}


def _finding(each: blocking.Open) -> dict[str, Any]:
    where = f"{each.topic}/{each.partition} from offset {each.first_offset}"
    last = iso(each.producer.last_timestamp)
    return {
        "text": f"Producer {each.producer.producer_id} hangs in {where}; its last record is of {last}.",
        "address": f"/topics/{each.topic}/why/{each.partition}",
        "command": each.command,
    }
