"""`CommitOrderConsumer`: reads past open transactions, and returns each transaction when it is committed.

    with Client("127.0.0.1:9092") as client, CommitOrderConsumer(client, "orders") as consumer:
        for record in consumer:
            store(record, consumer.position())

A consumer with read_committed stops at the oldest open transaction, even if later transactions have
committed. This consumer reads on, holds the records of open transactions, and returns a transaction when it
reads its commit marker: in commit order, with the records of a transaction together. Aborted transactions are
dropped. Records outside transactions are returned at their position. The order is per partition, not
across partitions.

It has no group: store the `position` together with the results, and `resume` from it. If both are stored
atomically, no record is lost or returned twice. Held records beyond a memory limit go to temporary files, see
`spool`. The algorithm is in `commit_order_log`.

The log of a topic with `semel.visibility=journal` is in commit order already, and is returned unchanged.

Compaction may remove the abort marker of records that the consumer holds. If the consumer cannot exclude
that, it reads the transaction again before it returns it (`compaction`). Records that compaction has
removed by then are not returned.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from semel.client.consume.commit_order_log import CommitOrderLog, CommitOrderPosition
from semel.client.consume.compaction import CompactionWatch
from semel.client.consume.consumer import PollingConsumer, Start
from semel.client.consume.fetch import ConsumedRecord, FetchLimits, fetch_batches
from semel.client.consume.offsets import EARLIEST, LATEST, Isolation, Partition, list_offsets
from semel.client.consume.spool import Spool
from semel.client.errors import ClientError, KafkaError, check
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, Client
from semel.client.net.retry import IDLE_PAUSE_S


class CommitOrderConsumer(PollingConsumer):
    """Reads topics, or some of their partitions, through a client, which it does not close."""

    def __init__(
        self,
        client: Client,
        topics: str | Iterable[str] = (),
        *,
        start: Start | str = Start.EARLIEST,
        memory_bytes: int = 64 << 20,
        spill_directory: Path | str | None = None,
        limits: FetchLimits | None = None,
    ) -> None:
        super().__init__(client)
        self._start = Start(start)
        self._limits = limits or FetchLimits()
        self._spool = Spool(memory_bytes, spill_directory)
        self._logs: dict[Partition, CommitOrderLog] = {}
        self._ready: deque[tuple[Partition, Iterator[ConsumedRecord]]] = deque()
        self._watch = CompactionWatch(client, self._spool, self._limits)
        names = [topics] if isinstance(topics, str) else list(topics)
        known = [client.topic(name, create=True, wait_s=UNKNOWN_TOPIC_WAIT_S, anew=True) for name in names]
        self.assign((topic.name, info.partition) for topic in known for info in topic.partitions)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete held records. May be called again."""
        self._ready.clear()
        self._logs.clear()
        self._spool.close()

    # ---- what is read

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, as (topic, number), from `start`.

        `EARLIEST` is the start of the log. `LATEST` is everything committed from now on, including
        transactions that are open already, as a whole.
        """
        keys = list(partitions)
        if self._start is Start.ERROR and keys:
            raise ValueError("a consumer in commit order must start at earliest, at latest or at a position")
        where = EARLIEST if self._start is Start.EARLIEST else LATEST
        wanted = dict.fromkeys(keys, where)
        # Query the stable offset first, so that the end cannot be before it.
        starts = list_offsets(self._client, wanted, isolation=Isolation.READ_COMMITTED)
        ends = starts if where == EARLIEST else list_offsets(self._client, wanted)
        self._replace({key: CommitOrderPosition(starts[key].offset, ends[key].offset) for key in keys})

    def resume(self, positions: Mapping[Partition, CommitOrderPosition | tuple[int, ...]]) -> None:
        """Read exactly these partitions, each from a position returned by `position`."""
        self._replace({key: CommitOrderPosition(*position) for key, position in positions.items()})

    def position(self) -> dict[Partition, CommitOrderPosition]:
        """Return the positions from which to resume after the last returned record."""
        return {key: log.position for key, log in self._logs.items()}

    def open_transactions(self) -> dict[Partition, dict[int, int]]:
        """Return the held transactions: for each partition, the first offset by producer id."""
        return {key: log.open_transactions for key, log in self._logs.items() if log.open_transactions}

    # ---- reading

    def read_to_end(self, timeout_s: float = 30.0) -> Iterator[ConsumedRecord]:
        """Iterate over what is committed before the current ends; stop after `timeout_s` without a record."""
        deadline = time.monotonic() + timeout_s
        ends = list_offsets(self._client, dict.fromkeys(self._logs, LATEST))
        while True:
            for record in self._hand_out(1):
                deadline = time.monotonic() + timeout_s
                yield record
            if self._ready:
                continue
            is_read = all(self._logs[key].next_offset >= end.offset for key, end in ends.items())
            if is_read or time.monotonic() >= deadline:
                return
            self._fetch(0.5)

    # ---- inside

    def _replace(self, positions: Mapping[Partition, CommitOrderPosition]) -> None:
        self._ready.clear()
        for log in self._logs.values():
            log.close()
        self._logs = {
            key: CommitOrderLog(
                key,
                position,
                self._spool,
                is_journal=self._watch.rules(key[0]).is_journal,
                check=partial(self._watch.check, key),
            )
            for key, position in positions.items()
        }
        self._watch.query(self._logs)

    def _hand_out(self, max_records: int) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = []
        while self._ready and len(records) < max_records:
            record = next(self._ready[0][1], None)
            if record is None:
                self._ready.popleft()
            else:
                records.append(record)
        return records

    def _fetch(self, max_wait_s: float) -> None:
        if not self._logs:
            time.sleep(min(max_wait_s, IDLE_PAUSE_S))
            return
        wanted = {key: log.next_offset for key, log in self._logs.items()}
        limits = replace(self._limits, max_wait_ms=min(self._limits.max_wait_ms, int(max_wait_s * 1000)))
        marks = {key: self._watch.mark(key) for key in wanted}
        try:
            found = fetch_batches(self._client, wanted, Isolation.READ_UNCOMMITTED, limits)
            self._watch.query(key for key, data in found if data.records)
            # Handle partitions with an error last, so that the others are read in any case.
            for key, data in sorted(found, key=lambda answer: bool(answer[1].error_code)):
                where = f"{key[0]}/{key[1]} cannot be read at offset {wanted[key]}"
                check(data.error_code, where)
                if data.records:
                    self._ready.append((key, self._logs[key].read(data.records, marks[key])))
                else:
                    self._logs[key].forget_ended(data.high_watermark, data.last_stable_offset)
            self._outage.end()
        except (KafkaError, ClientError) as error:
            for topic, _ in wanted:
                self._client.forget_topic(topic)
            self._outage.tolerate(error, self._client.timeout_s)
