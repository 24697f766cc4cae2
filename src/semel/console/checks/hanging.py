"""Finds transactions that hang: open in a partition, and unknown to every coordinator."""

import threading
from collections.abc import Generator
from typing import Any

from semel.client import Client, ErrorCode, KafkaError, UnsupportedRequest
from semel.client.admin import blocking
from semel.console.rendering import iso

#: How many of the topics that could not be read the result names.
NAMED_MAX = 5


def find_hanging(
    client: Client, stop: threading.Event, only: str | None
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Search every topic, or one; report each topic and each finding."""
    names = [only] if only else sorted(each.name for each in client.describe().topics)
    found = 0
    skipped: list[str] = []
    for number, name in enumerate(names):
        if stop.is_set():
            return
        yield "progress", {"done": number, "total": len(names), "at": name}
        try:
            hanging = blocking.hanging_in(client, name)
        except UnsupportedRequest:
            text = "Nothing was checked: this broker does not describe producers (DescribeProducers)."
            yield "result", {"good": False, "text": text, "done": number, "total": len(names)}
            return
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                skipped.append(name)  # The principal may not describe its producers.
            elif error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or only:
                raise
            continue  # Not authorized, or deleted meanwhile.
        for each in hanging:
            found += 1
            yield "finding", _finding(each)
    seen = len(names) - len(skipped)
    text = f"{found} transactions hang." if found else f"No transaction hangs in {seen} topics."
    if skipped:
        more = "" if len(skipped) <= NAMED_MAX else f" and {len(skipped) - NAMED_MAX} more"
        text += (
            f" {len(skipped)} topics were not looked into, because you may not describe their producers: "
            f"{', '.join(skipped[:NAMED_MAX])}{more}."
        )
    is_good = not found and not skipped
    yield "result", {"good": is_good, "text": text, "done": len(names), "total": len(names)}


def _finding(each: blocking.Open) -> dict[str, Any]:
    where = f"{each.topic}/{each.partition} from offset {each.first_offset}"
    last = iso(each.producer.last_timestamp)
    return {
        "text": f"Producer {each.producer.producer_id} hangs in {where}; its last record is of {last}.",
        "address": f"/topics/{each.topic}/why/{each.partition}",
        "command": each.command,
    }
