"""`TransactionalProducer`: writes records and offsets in transactions.

    with Client("127.0.0.1:9092") as client, TransactionalProducer(client, "billing-1") as producer:
        with producer.transaction():
            producer.send("invoices", b"42", key=b"customer-7")
            producer.send_offsets({("orders", 0): 1234}, consumer.group_metadata())

A transactional id belongs to one producer at a time: the newest. `with`, or `init`, takes it over, aborts the
open transaction of the previous owner and fences it. The block commits at its end and aborts on an exception.
`State` shows which calls are valid when.

The class of an error says what to do: see `errors`. Every call retries for `timeout_s`. After
`OutcomeUnknown` only `commit` can be called, until there is an answer. After `ProducerFenced` and
`ProducerFailed` the producer cannot be used.

Two-phase commit: `prepare` returns the identity of the transaction, to be stored with the decision of another
system. From then on any process can end it, see `prepared`. With `two_phase=True` the broker never aborts it
by itself.

Semel's extension of Kafka's protocol acknowledges records of a share group in a transaction:

    jobs = consumer.poll()
    with producer.transaction():
        for job in jobs:
            producer.send("results", work(job.value))
        producer.acknowledge(consumer, *jobs)

The records are settled if the transaction commits, and delivered again if it aborts. If the consumer does not
hold one of them any more, because its lock was over or the broker was restarted, the transaction cannot be
committed: another member may have the record.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, NoReturn, Self

from semel.client import errors
from semel.client.admin.group_offsets import CommittedOffset, GroupMetadata
from semel.client.consume.offsets import Partition
from semel.client.net.cluster import Client
from semel.client.net.retry import retrying
from semel.client.produce.batches import Delivery, Headers
from semel.client.produce.prepared import PreparedTransaction
from semel.client.produce.producer import TransactionWriter
from semel.client.produce.transaction_coordinator import NOBODY_YET, Coordinator, transaction_version
from semel.client.shares.consumer import ShareConsumer
from semel.client.shares.session import Acknowledgements, AcknowledgeType, ShareRecord, acknowledged_topics
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.columns import Packed
from semel.wire.compression import Codec
from semel.wire.errors import ErrorCode
from semel.wire.messages.semel import (
    COMMIT_TRANSACTIONS,
    TxnShareAcknowledgeRequest,
    TxnShareAcknowledgeResponse,
)

FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class State(Enum):
    """The state of a producer between two calls. The values complete "the producer …".

        NEW --init--> READY --begin--> OPEN --commit--> READY     OPEN --prepare--> PREPARED --commit--> READY
                                       OPEN --abort---> READY                       PREPARED --abort---> READY

    COMMITTING and ABORTING: the end was sent and not answered, so it can only be repeated. DEAD is final.
    """

    NEW = "is not initialised"
    READY = "has no open transaction"
    OPEN = "has an open transaction"
    PREPARED = "has prepared its transaction"
    COMMITTING = "has sent a commit whose outcome is unknown"
    ABORTING = "has sent an abort without an answer"
    DEAD = "cannot continue"
    CLOSED = "is closed"


class TransactionalProducer:
    """Writes in transactions through a client, which it does not close."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        two_phase: bool = False,
        codec: Codec = Codec.NONE,
        linger_s: float = 0.05,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        timeout_s: float = 60.0,
        version_max: int = 2,
    ) -> None:
        if not transactional_id:
            raise ValueError("a transactional id must not be empty")
        if version_max not in (1, 2):
            raise ValueError(f"version_max must be 1 or 2, not {version_max}")
        self.transactional_id = transactional_id
        self._client = client
        self._timeout_ms = transaction_timeout_ms
        self._two_phase = two_phase
        self._version_max = version_max
        self._coordinator = Coordinator(client, transactional_id, timeout_s)
        self._writer = TransactionWriter(
            client,
            self._coordinator,
            codec=codec,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            timeout_s=timeout_s,
        )
        self._state = State.NEW
        self._identity = NOBODY_YET
        self._version = 1
        self._groups: set[str] = set()
        self._failure: errors.TransactionError | None = None

    def __enter__(self) -> Self:
        if self._state is State.NEW:
            self.init()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        errors.close_after(error, self.close)

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The current producer id and epoch."""
        return self._identity

    @property
    def version(self) -> int:
        """The transaction version, 1 or 2. It changes only between transactions."""
        return self._version

    @property
    def state(self) -> State:
        """The state of the producer."""
        return self._state

    # ---- the life of a producer

    def init(self) -> None:
        """Take over the transactional id: fence its last owner, and abort its open transaction."""
        self._expect("init", State.NEW)
        self._take(keep_prepared=False)
        self._state = State.READY

    def resume(self) -> PreparedTransaction | None:
        """Take over the id with its open transaction, to `commit` or `abort` it; two-phase only.

        None if no transaction was open; then the producer is ready for the next.
        """
        self._expect("resume", State.NEW)
        if not self._two_phase:
            raise errors.TransactionMisuse("only a producer with two_phase=True can take over a transaction.")
        prepared = self._take(keep_prepared=True)
        self._state = State.READY if prepared is None else State.PREPARED
        return prepared

    def _take(self, *, keep_prepared: bool) -> PreparedTransaction | None:
        self._identity, found = self._coordinator.init(
            self._timeout_ms, two_phase=self._two_phase, keep_prepared=keep_prepared
        )
        self._version = self._found_version()
        return None if found is None else PreparedTransaction(self.transactional_id, *found)

    def close(self) -> None:
        """Abort the open transaction, unless it is prepared, and end the producer. May be called again."""
        state = self._state
        try:
            if state in (State.OPEN, State.ABORTING):
                self.abort()
        finally:
            self._state = State.CLOSED
        if state is State.COMMITTING:
            raise errors.OutcomeUnknown(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the producer of {self.transactional_id!r} was closed before its commit was answered. "
                "See 'semel transactions describe'.",
            )

    # ---- the life of a transaction

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Run a block in a transaction, which is aborted if an exception leaves the block.

        If the block has prepared or ended the transaction itself, it is not changed.
        """
        self.begin()
        try:
            yield self
            if self._state is State.OPEN:
                self.commit()
        except BaseException:
            # Suppress errors of the abort: the exception says more, and the broker aborts after the timeout.
            with suppress(errors.KafkaError, errors.ClientError):
                if self._state is State.OPEN:
                    self.abort()
            raise

    def begin(self) -> None:
        """Begin a transaction. The broker learns of it with the first record or offset.

        If the cluster has been upgraded to version 2, the producer initialises its id again; that may fail.
        """
        if self._state is State.NEW:
            self.init()
        self._expect("begin", State.READY)
        self._look_for_version()
        self._groups.clear()
        self._failure = None
        self._coordinator.commit_in_doubt = False
        self._writer.start(self._identity, self._version)
        self._state = State.OPEN

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send a record of this transaction. Without a partition the key decides.

        Raises at once if there is no such topic or partition; the transaction is not affected.
        """
        self._expect_usable("send")
        return self._writer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    def send_packed(self, topic: str, partition: int, packed: Packed) -> Delivery:
        """Send packed records of this transaction; see `Producer.send_packed`."""
        self._expect_usable("send_packed")
        return self._writer.send_packed(topic, partition, packed)

    def send_offsets(
        self, offsets: Mapping[Partition, int | CommittedOffset], group: GroupMetadata | str
    ) -> None:
        """Commit these offsets of a group if the transaction commits.

        With the `group_metadata` of a consumer, the broker refuses them if that consumer lost its partitions.
        """
        self._expect_usable("send_offsets")
        metadata = group if isinstance(group, GroupMetadata) else GroupMetadata(group)
        if not offsets:
            return
        is_new = metadata.group_id not in self._groups
        self._groups.add(metadata.group_id)
        try:
            if self._version < 2 and is_new:
                self._coordinator.add_group(self._identity, metadata.group_id)
            self._coordinator.commit_offsets(self._identity, self._version, metadata, offsets)
        except (errors.KafkaError, errors.ClientError) as error:
            self._fail(error)

    def acknowledge(self, consumer: ShareConsumer, *records: ShareRecord, accept: bool = True) -> None:
        """Acknowledge records of a share group if the transaction commits; see the module."""
        self._expect_usable("acknowledge")
        if not records:
            return
        self._writer.has_written = True
        transaction = PreparedTransaction(self.transactional_id, *self._identity)
        try:
            _acknowledge(self._client, transaction, self._version, consumer, records, is_accepted=accept)
        except (errors.KafkaError, errors.ClientError) as error:
            self._fail(error)

    def flush(self) -> None:
        """Send all records and wait for the answers. MustAbort if one was refused."""
        self._expect_usable("flush")
        self._writer.send_all()
        self._expect_usable("flush")

    def prepare(self) -> PreparedTransaction | None:
        """Send everything to the broker, so that only the outcome is missing, and return the transaction.

        From then on the transaction can only be ended, by this producer or by any holder of the result. None
        if nothing was written: then there is nothing to end, and the producer is ready for the next.
        """
        self.flush()
        if not self._is_known:
            self._state = State.READY
            return None
        self._state = State.PREPARED
        return PreparedTransaction(self.transactional_id, *self._identity)

    def commit(self) -> None:
        """Commit. May be called again after `OutcomeUnknown`, until the outcome is known."""
        self._expect("commit", State.OPEN, State.PREPARED, State.COMMITTING)
        if self._state is State.OPEN:
            self.flush()
            if not self._is_known:
                self._state = State.READY
                return
        self._state = State.COMMITTING
        try:
            self._identity = self._coordinator.end(self._identity, self._version, commit=True)
        except (errors.KafkaError, errors.ClientError) as error:
            self._not_committed(error)
        self._state = State.READY

    def abort(self) -> None:
        """Abort. May be called again if the broker did not answer."""
        self._expect("abort", State.OPEN, State.PREPARED, State.ABORTING)
        was_prepared = self._state is State.PREPARED
        dropped = f"the transaction of {self.transactional_id!r} was aborted before the record was sent"
        self._writer.drop(errors.TransactionAborted(ErrorCode.TRANSACTION_ABORTABLE, dropped))
        if self._state is State.OPEN and not self._is_known:
            self._state = State.READY
            return
        self._state = State.ABORTING
        try:
            self._identity = self._coordinator.end(self._identity, self._version, commit=False)
        except (errors.KafkaError, errors.ClientError) as error:
            self._not_aborted(error, was_prepared)
        if self._version < 2 and self._writer.failure is not None:
            # The sequence numbers of a refused batch are missing in the log: start again, in a new epoch.
            self._renew()
        self._state = State.READY

    # ---- inside

    @property
    def _is_known(self) -> bool:
        """Whether the broker may know of this transaction."""
        return self._writer.has_written or bool(self._groups)

    def _found_version(self) -> int:
        return min(self._version_max, transaction_version(self._client))

    def _look_for_version(self) -> None:
        try:
            version = self._found_version()
        except errors.ClientError:
            return  # No broker can be reached now. The next request retries for longer.
        if version > self._version:
            # Bump the epoch: delayed requests of version 1 would still match the old one.
            self._renew()
        self._version = version

    def _renew(self) -> None:
        """Request a new epoch, on the condition that no other producer has taken the id."""
        known = self._identity if self._coordinator.can_recover() else NOBODY_YET
        try:
            taken = self._coordinator.init(self._timeout_ms, known, two_phase=self._two_phase)
        except errors.KafkaError as error:
            if error.retriable:
                raise
            self._die(error)
        self._identity = taken.identity

    def _not_committed(self, error: Exception) -> NoReturn:
        name = f"the transaction of {self.transactional_id!r}"
        if errors.is_retriable(error):
            unknown = f"whether {name} was committed is unknown; call commit again"
            raise errors.OutcomeUnknown.of(error, unknown, str(error))
        assert isinstance(error, errors.KafkaError), "only refusals are not retriable here"
        was_ended = error.code is ErrorCode.INVALID_TXN_STATE
        # After a lost answer, fencing does not tell the outcome: the commit may have happened before it.
        in_doubt = self._coordinator.commit_in_doubt
        if was_ended and self._version >= 2:
            # The answer to an abort has the epoch to continue with, even if the broker has already aborted.
            self._identity = self._coordinator.end(self._identity, self._version, commit=False)
        elif not was_ended and not (error.code in FENCED and not in_doubt and self._recovered()):
            self._die(error)
        self._state = State.READY
        what = f"the broker has aborted {name}; its timeout is {self._timeout_ms} ms. Begin another one"
        raise errors.TransactionAborted.of(error, what)

    def _not_aborted(self, error: Exception, was_prepared: bool) -> None:
        if errors.is_retriable(error):
            raise error
        assert isinstance(error, errors.KafkaError), "only refusals are not retriable here"
        if error.code is ErrorCode.INVALID_TXN_STATE and self._version < 2 and not was_prepared:
            return  # Nothing was open: the request that would have opened the transaction had no effect.
        if not (error.code in FENCED and self._recovered()):
            self._die(error)

    def _recovered(self) -> bool:
        """Try to get a new epoch after a fencing error. False if another producer has taken the id.

        In version 1 a broker that has aborted the transaction after its timeout returns a fencing error, too.
        Version 2 has different errors for the two cases, so there the result is False.
        """
        if self._version >= 2 or not self._coordinator.can_recover():
            return False
        try:
            taken = self._coordinator.init(self._timeout_ms, self._identity, two_phase=self._two_phase)
        except errors.KafkaError as error:
            if error.code in FENCED:
                return False
            raise
        self._identity = taken.identity
        return True

    def _fail(self, error: Exception) -> NoReturn:
        """Record that this transaction cannot be committed."""
        if isinstance(error, errors.KafkaError) and error.code is ErrorCode.PRODUCER_FENCED:
            self._die(error)
        what = f"the transaction of {self.transactional_id!r} cannot be committed; abort it"
        reason = error.message if isinstance(error, errors.KafkaError) else str(error)
        self._failure = errors.MustAbort.of(error, what, reason)
        raise self._failure

    def _die(self, error: errors.KafkaError) -> NoReturn:
        self._state = State.DEAD
        name = f"the producer of {self.transactional_id!r}"
        in_doubt = self._coordinator.commit_in_doubt
        doubt = "; its commit may have happened, since an answer was lost" if in_doubt else ""
        if error.code in FENCED:
            what = f"{name} must stop: another producer has the id now{doubt}"
            self._failure = errors.ProducerFenced.of(error, what)
        else:
            what = f"{name} cannot continue; close it and create another one{doubt}"
            self._failure = errors.ProducerFailed.of(error, what, error.message)
        raise self._failure

    def _expect_usable(self, call: str) -> None:
        self._expect(call, State.OPEN)
        if self._failure is not None:
            raise self._failure
        if self._writer.failure is not None:
            self._fail(self._writer.failure)

    def _expect(self, call: str, *states: State) -> None:
        if self._state in states:
            return
        if self._state is State.DEAD and self._failure is not None:
            raise self._failure
        raise errors.TransactionMisuse(
            f"{call}() is not possible now: the producer of {self.transactional_id!r} {self._state.value}."
        )


_REFUSED = "records were not acknowledged in the transaction"
_LOST = "this member does not hold one of them any more"


def _serves_share_transactions(client: Client) -> bool:
    """Whether the brokers have this API. The API key alone is no proof: it is not registered with Kafka."""
    return client.feature(COMMIT_TRANSACTIONS) >= 1 and client.serves(TxnShareAcknowledgeRequest.api_key)


def _acknowledge(
    client: Client,
    transaction: PreparedTransaction,
    version: int,
    consumer: ShareConsumer,
    records: Collection[ShareRecord],
    *,
    is_accepted: bool,
) -> None:
    """Acknowledge these records of a consumer when the transaction commits.

    The request goes to the leader of each partition. It is idempotent within its transaction. After a
    KafkaError or ClientError, some records are not in the transaction, which has to be aborted.
    """
    if version < 2 or not _serves_share_transactions(client):
        raise errors.UnsupportedRequest(
            "records of share groups can be acknowledged in transactions of version 2, on Semel."
        )
    kind = AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.REJECT
    kinds: Acknowledgements = {}
    for record in records:
        # The caller may pass two deliveries of one record; the results of only one of them may count.
        is_there = record.offset in kinds.setdefault(record.place, {})
        if is_there or not consumer.holds(record):
            errors.check(ErrorCode.INVALID_RECORD_STATE, _REFUSED, _LOST)
        kinds[record.place][record.offset] = kind
    topics = {record.place: record.topic for record in records}

    def ask_leaders() -> None:
        by_node: dict[int, Acknowledgements] = {}
        for key, offsets in kinds.items():
            by_node.setdefault(client.leader(topics[key], key[1]), {})[key] = offsets
        for node, part in by_node.items():
            _check_acknowledged(client.send(_acknowledge_request(transaction, consumer, part), node=node))

    def forget_leaders() -> None:
        for name in topics.values():
            client.forget_topic(name)

    retrying(ask_leaders, client.patience_s, on_failure=forget_leaders)
    for record in records:
        consumer.forget(record)


def _acknowledge_request(
    transaction: PreparedTransaction, consumer: ShareConsumer, part: Acknowledgements
) -> TxnShareAcknowledgeRequest:
    return TxnShareAcknowledgeRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        group_id=consumer.group_id,
        member_id=consumer.member_id,
        topics=acknowledged_topics(part),
    )


def _check_acknowledged(response: TxnShareAcknowledgeResponse) -> None:
    errors.check(response.error_code, _REFUSED, response.error_message)
    for topic in response.responses:
        for partition in topic.partitions:
            is_lost = partition.error_code == ErrorCode.INVALID_RECORD_STATE
            errors.check(partition.error_code, _REFUSED, _LOST if is_lost else partition.error_message)
