"""Validates produced batches before they are submitted: the topic, the header, the content.

`Preparation` iterates over the batches of a request and makes a command of each valid one. Small requests are
prepared on the event loop. Larger ones are prepared on the validation threads, in slices of a few
milliseconds; between two slices other connections have their turn (``Broker.beside``).
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from semel.broker.topic_limits import TopicLimits
from semel.core.log.partition import Append, TransactionContext
from semel.core.types import ErrorCode, PartitionKey
from semel.handlers.context import RequestContext
from semel.wire.batch import CODEC_MASK, produced_fault
from semel.wire.errors import InvalidRecords
from semel.wire.invalid_records import NAMED_MAX
from semel.wire.messages.produce import ProduceRequest
from semel.wire.records import BatchHeader, check_produced, with_log_append_time
from semel.wire.schema import Buffer
from semel.wire.validating import (
    IS_COMPILED,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    validate,
    with_max_timestamp,
)

SECOND_GENERATION: Final = 12
"""The version of Produce from which a transactional batch adds its partition to the transaction (KIP-890)."""
EFFORT_MAX: Final = 16_384 if IS_COMPILED else 1_024
"""Records per request that the event loop validates: up to two milliseconds. Threads validate larger ones."""
SMALL_BATCH_BYTES: Final = 8_192
SMALL_CONTENT_BYTES: Final = 65_536
"""A compressed batch is validated on the event loop only if both it and its content are small."""
SMALL_BATCH_EFFORT: Final = 1_024
"""The cost of decompressing such a batch, in records."""
SLICE_SECONDS: Final = 0.01
"""How long a thread works on a request before other requests have their turn. A batch is never divided."""


class Refusal(NamedTuple):
    """Why a batch is not appended: error code, message, and the invalid records with their own messages."""

    error: ErrorCode
    message: str | None = None
    records: tuple[tuple[int, str], ...] = ()


UNAUTHORIZED: Final = Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
NOT_LEADER: Final = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class TakesLong(Exception):
    """Raised if a request is too much work for the event loop and needs a thread."""


class Preparation:
    """Turns the batches of one request into commands."""

    __slots__ = (
        "_effort",
        "_leads",
        "_limits",
        "_nameable",
        "_now",
        "_parts",
        "_request",
        "_verifies",
        "_version",
        "commands",
        "refused",
        "unstamped",
    )

    def __init__(
        self,
        request: ProduceRequest,
        context: RequestContext,
        limits: list[TopicLimits | None],
        now: int,
        leads: Callable[[PartitionKey], bool],
        *,
        verifies: bool,
        is_beside: bool,
    ) -> None:
        self._request = request
        self._version = context.version
        self._limits = limits
        self._now = now
        self._leads = leads
        self._verifies = verifies
        # How many records may still be validated on the event loop; None (no limit) on a thread.
        self._effort: int | None = None if is_beside else EFFORT_MAX
        self._nameable = NAMED_MAX
        self._parts = self._each()
        self.commands: list[Append] = []
        self.refused: list[Refusal | None] = []
        """One for each partition, in the order of the request; None if the batch became a command."""
        self.unstamped: list[int] = []
        """Indexes of the commands that get the broker's time (LogAppendTime)."""

    def all(self) -> None:
        """Prepare all batches now; raises ``TakesLong`` if that is too much for the event loop."""
        self.refused.extend(self._parts)

    def go_on(self) -> bool:
        """Prepare some batches, on a thread. Returns whether there are more."""
        until = time.perf_counter() + SLICE_SECONDS
        for refused in self._parts:
            self.refused.append(refused)
            if time.perf_counter() > until:
                return True
        return False

    def stamp(self, now: int) -> None:
        """Set LogAppendTime, in the turn that submits the batches, so that it ascends with offsets."""
        for at in self.unstamped:
            command = self.commands[at]
            records = with_log_append_time(command.records, now)
            self.commands[at] = command.but(records=records, log_append_time=now)

    def _each(self) -> Iterator[Refusal | None]:
        for data, limits in zip(self._request.topic_data, self._limits, strict=True):
            transaction_context = None if limits is None else self._transaction_context(limits)
            for part in data.partition_data:
                yield self._prepare(limits, part.index, part.records, transaction_context, self._now)

    def _prepare(
        self,
        limits: TopicLimits | None,
        index: int,
        records: Buffer | None,
        transaction_context: TransactionContext | None,
        now: int,
    ) -> Refusal | None:
        if limits is None:
            by_id = self._version >= 13
            return Refusal(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= index < len(limits.partitions):
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not self._leads(limits.partitions[index]):
            return NOT_LEADER
        header, error = check_produced(records, self._version)
        if header is None or records is None:
            return Refusal(error, produced_fault(records, error))
        if self._request.acks not in (-1, 0, 1):
            return Refusal(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")
        if not header.is_transactional:
            return self._fit(limits, index, header, records, None, now)
        if transaction_context is None:
            return UNAUTHORIZED
        if header.producer_id < 0:
            return Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a transaction without a producer id")
        return self._fit(limits, index, header, records, transaction_context, now)

    def _fit(
        self,
        limits: TopicLimits,
        index: int,
        header: BatchHeader,
        records: Buffer,
        transaction_context: TransactionContext | None,
        now: int,
    ) -> Refusal | None:
        """Check the batch against the topic's configs; add a command if it passes."""
        if header.length > limits.max_message_bytes:
            return Refusal(
                ErrorCode.MESSAGE_TOO_LARGE, f"the batch is larger than {limits.max_message_bytes} bytes"
            )
        if limits.log_append_time:
            earliest, latest = MIN_TIMESTAMP, MAX_TIMESTAMP
        else:
            earliest, latest = now - limits.before_max_ms, min(now + limits.after_max_ms, MAX_TIMESTAMP)
        if limits.validates_compressed if header.attributes & CODEC_MASK else limits.validates:
            try:
                newest = self._validate(limits, header, records, earliest, latest)
            except InvalidRecords as error:
                return self._refusal(error)
            if newest != header.max_timestamp and not limits.log_append_time:
                # Kafka's own producers set the max timestamp correctly; Kafka corrects that of others.
                header = header._replace(max_timestamp=newest)
                records = with_max_timestamp(records, header)
        elif header.max_timestamp > latest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far in the future")
        elif 0 <= header.base_timestamp < earliest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too old")
        if limits.log_append_time:
            self.unstamped.append(len(self.commands))
        self.commands.append(
            Append(limits.partitions[index], header, records, -1, transaction_context, limits.is_journal)
        )
        return None

    def _refusal(self, error: InvalidRecords) -> Refusal:
        """Name the invalid records, within the limit for a response; at least the first of each batch."""
        named = error.records[: max(1, self._nameable)]
        self._nameable -= len(named)
        return Refusal(error.code, error.message, named)

    def _validate(
        self, limits: TopicLimits, header: BatchHeader, records: Buffer, earliest: int, latest: int
    ) -> int:
        """Validate the records; return their largest timestamp. Raises ``TakesLong`` if it needs a thread."""
        content_max_bytes, is_packed = limits.content_max_bytes, header.attributes & CODEC_MASK
        if self._effort is not None:
            self._effort -= SMALL_BATCH_EFFORT if is_packed else header.record_count
            if self._effort < 0 or (is_packed and header.length > SMALL_BATCH_BYTES):
                raise TakesLong
            content_max_bytes = min(content_max_bytes, SMALL_CONTENT_BYTES)
        try:
            return validate(records, header, content_max_bytes, earliest, latest, limits.compacts)
        except InvalidRecords:
            # The batch may be valid, but have more content than the event loop decompresses.
            if is_packed and self._effort is not None:
                raise TakesLong from None
            raise

    def _transaction_context(self, limits: TopicLimits) -> TransactionContext | None:
        """The transaction that the request's transactional batches belong to."""
        if self._request.transactional_id is None:
            return None
        return TransactionContext(
            self._request.transactional_id,
            2 if self._version >= SECOND_GENERATION else 1,
            self._verifies,
            limits.block_max_ms,
        )
