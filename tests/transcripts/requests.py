"""Requests of clients, under Kafka's names: each becomes a command of the core.

BeginAttempt and CommitTransactions are Semel's own. The docstring of a function says what follows the name.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from support.models.rules import header
from transcripts.parsing import Call, TranscriptError
from transcripts.printing import error_text, given_text, name_of
from transcripts.session import Client, Session, answer_line

from semel.core.groups.offsets import CommitOffsets, Committer, FetchOffsets
from semel.core.log.partition import AllocateProducerId, Append, Appended, DeleteRecords, TransactionContext
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, Producer, TransactionsCommitted
from semel.core.transactions.commands import (
    NO_CONNECTION,
    SUPERSEDED,
    AddOffsets,
    AddPartitions,
    ChangeFeature,
    CommitPending,
    EndTransaction,
    InitProducer,
    ProducerGiven,
)
from semel.core.types import CommittedOffset, Decision, ErrorCode, OffsetKey
from semel.wire.api_key import ApiKey

Lines = Iterator[str]
BLOCK_MAX_MS: Final = "semel.transaction.block.max.ms"


def _init_producer_id(session: Session, call: Call) -> Lines:
    """[TRANSACTIONAL-ID version=1|2] [timeout=60s] [recover] [two-phase] [keep-prepared] [lost]."""
    lost = call.flag("lost")
    recover, two_phase, keep = call.flag("recover"), call.flag("two-phase"), call.flag("keep-prepared")
    shown = session.client(call) if recover else None
    if call.client is None:
        raise TranscriptError("InitProducerId needs a client")
    if not call.words:
        call.finish()
        decision, facts = session.decide(AllocateProducerId())
        yield from facts
        given = ProducerGiven(ErrorCode.NONE, decision.answer, 0)
        session.clients[call.client] = Client(None, 0, given.producer_id, given.epoch)
        yield answer_line(given_text(given))
        return
    client = Client(call.word("a transactional id"), 0, -1, -1)
    client.version = call.number("version", shown.version if shown else None)
    command = InitProducer(
        client.transactional_id or "",
        call.duration_ms("timeout", "60s"),
        shown.producer_id if shown else -1,
        shown.epoch if shown else -1,
        is_two_phase=two_phase,
        keep_prepared=keep,
        may_two_phase=session.allows_two_phase,
        connection=call.number("connection", NO_CONNECTION),
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    yield session.adopt(call, client, decision, ApiKey.INIT_PRODUCER_ID, lost=lost)


def _produce(session: Session, call: Call) -> Lines:
    """PARTITION sequence=N [records=1] [lost]; without a client, records of no producer."""
    lost = call.flag("lost")
    partition = session.partition(call.word("a partition"))
    count = call.number("records", 1)
    context, version = None, 0
    if call.client is None:
        batch = header(producer_id=-1, epoch=-1, count=count)
    else:
        client = session.client(call)
        batch = header(
            call.number("sequence"), producer_id=client.producer_id, epoch=client.epoch, count=count
        )
        version = client.version
        if client.transactional_id is not None:
            block_max_ms = int(session.config(partition, BLOCK_MAX_MS))
            context = TransactionContext(client.transactional_id, version, block_max_ms=block_max_ms)
    call.finish()
    is_journal = session.config(partition, "semel.visibility") == "journal"
    command = Append(partition, batch, b"", transaction_context=context, is_journal=is_journal)
    decision, facts = session.decide(command)
    yield from facts
    yield answer_line(_appended(session, decision, version), lost=lost)


def _appended(session: Session, decision: Decision, version: int) -> str:
    answer: Appended = decision.answer
    if answer.error:
        return error_text(session.told(answer.error, ApiKey.PRODUCE, version))
    text = f"offset {answer.base_offset}" if answer.base_offset >= 0 else "staged, without an offset"
    return text if decision.facts else f"{text} (duplicate)"


def _add_partitions_to_txn(session: Session, call: Call) -> Lines:
    """PARTITION…"""
    client = session.client(call)
    connection = call.number("connection", NO_CONNECTION)
    partitions = tuple(map(session.partition, call.rest()))
    call.finish()
    limits = [int(session.config(each, BLOCK_MAX_MS)) for each in partitions]
    command = AddPartitions(
        client.transactional_id or "",
        client.producer_id,
        client.epoch,
        partitions,
        block_max_ms=min((each for each in limits if each >= 0), default=-1),
        connection=connection,
    )
    yield from _added(session, command, ApiKey.ADD_PARTITIONS_TO_TXN, client.version)


def _add_offsets_to_txn(session: Session, call: Call) -> Lines:
    """GROUP."""
    client = session.client(call)
    connection = call.number("connection", NO_CONNECTION)
    group_id = call.word("a group")
    call.finish()
    command = AddOffsets(
        client.transactional_id or "", client.producer_id, client.epoch, group_id, connection=connection
    )
    yield from _added(session, command, ApiKey.ADD_OFFSETS_TO_TXN, client.version)


def _added(session: Session, command: AddPartitions | AddOffsets, api_key: int, version: int) -> Lines:
    decision, facts = session.decide(command)
    yield from facts
    if decision.answer is SUPERSEDED:
        yield answer_line("none, the connection is closed")
    else:
        yield answer_line(error_text(session.told(decision.answer, api_key, version)))


def _offsets(session: Session, call: Call, group_id: str) -> tuple[tuple[OffsetKey, CommittedOffset], ...]:
    given = dict(call.pairs)
    call.pairs.clear()
    if not all(value.isdecimal() for value in given.values()):
        raise TranscriptError("an offset is a number, such as orders/0=5")
    return tuple(
        (session.offset_key(group_id, name), CommittedOffset(int(value))) for name, value in given.items()
    )


def _committer(call: Call) -> Committer:
    return Committer(call.number("generation", -1), call.option("member", ""))


def _txn_offset_commit(session: Session, call: Call) -> Lines:
    """GROUP PARTITION=OFFSET… [generation=N member=ID]."""
    client = session.client(call)
    group_id = call.word("a group")
    command = CommitPending(
        client.transactional_id or "",
        client.producer_id,
        client.epoch,
        group_id,
        _committer(call),
        _offsets(session, call, group_id),
        version=client.version,
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    told = tuple(session.told(each, ApiKey.TXN_OFFSET_COMMIT, client.version) for each in decision.answer)
    yield answer_line(_each(command.offsets, told))


def _each(offsets: tuple[tuple[OffsetKey, CommittedOffset], ...], errors: tuple[ErrorCode, ...]) -> str:
    """One error if it is the same for all, else one for each."""
    if len(set(errors)) == 1:
        return error_text(errors[0])
    told = zip(offsets, errors, strict=True)
    return ", ".join(f"{name_of(key)} {error_text(error)}" for (key, _), error in told)


def _offset_commit(session: Session, call: Call) -> Lines:
    """GROUP PARTITION=OFFSET… [generation=N member=ID]."""
    group_id = call.word("a group")
    command = CommitOffsets(group_id, _committer(call), _offsets(session, call, group_id))
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    yield answer_line(_each(command.offsets, decision.answer))


def _offset_fetch(session: Session, call: Call) -> Lines:
    """GROUP PARTITION… [stable]: the positions, or UNSTABLE_OFFSET_COMMIT where a transaction holds one."""
    stable = call.flag("stable")
    group_id = call.word("a group")
    keys = tuple(session.offset_key(group_id, each) for each in call.rest())
    call.finish()
    decision, _ = session.decide(FetchOffsets(group_id, offsets=keys, require_stable=stable))
    found = []
    for key, value in zip(keys, decision.answer.offsets, strict=True):
        if key in decision.answer.unstable:
            found.append(f"{name_of(key)} {error_text(ErrorCode.UNSTABLE_OFFSET_COMMIT)}")
        else:
            found.append(f"{name_of(key)}={value.offset}" if value else f"{name_of(key)} none")
    yield answer_line(", ".join(found))


def _end_txn(session: Session, call: Call) -> Lines:
    """commit|abort [lost]."""
    lost = call.flag("lost")
    # A request that shows something else was long under way: the client is not waiting for its answer.
    is_late = bool({"epoch", "producer-id"} & set(call.options))
    client = session.client(call)
    outcome = call.word("commit or abort")
    if outcome not in ("commit", "abort"):
        raise TranscriptError(f"EndTxn is commit or abort, not {outcome!r}")
    command = EndTransaction(
        client.transactional_id or "",
        client.producer_id,
        client.epoch,
        outcome == "commit",
        client.version,
        call.number("connection", NO_CONNECTION),
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    held = session.named(call.client or "")
    yield session.adopt(call, client, decision, ApiKey.END_TXN, lost=lost)
    if is_late:
        session.clients[call.client or ""] = held


def _begin_attempt(session: Session, call: Call) -> Lines:
    """TRANSACTIONAL-ID driver=CLIENT [version=2] [timeout=1d]."""
    if call.client is None:
        raise TranscriptError("BeginAttempt needs a client")
    client = Client(call.word("a transactional id"), call.number("version", 2), -1, -1)
    driver = _producer(session, call.option("driver"))
    command = BeginAttempt(
        client.transactional_id or "", driver, call.duration_ms("timeout", "1d"), client.version
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    yield session.adopt(call, client, decision, ApiKey.INIT_PRODUCER_ID, lost=False)


def _producer(session: Session, name: str) -> Producer:
    client = session.named(name)
    return Producer(client.transactional_id or "", client.producer_id, client.epoch)


def _commit_transactions(session: Session, call: Call) -> Lines:
    """CLIENT… [group=GROUP PARTITION=OFFSET…] [lost]."""
    lost = call.flag("lost")
    driver = _producer(session, call.client or "")
    group_id = call.option("group", "")
    command = CommitTransactions(
        driver,
        tuple(_producer(session, each) for each in call.rest()),
        group_id,
        _offsets(session, call, group_id),
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    answer: TransactionsCommitted = decision.answer
    refused = "".join(f"; {name}: {error_text(error)}" for name, error in answer.refused)
    yield answer_line(error_text(answer.error) + refused, lost=lost)


def _update_features(session: Session, call: Call) -> Lines:
    """transaction.version=0|1|2."""
    command = ChangeFeature(call.number("transaction.version"))
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    yield answer_line(error_text(decision.answer))


def _delete_records(session: Session, call: Call) -> Lines:
    """PARTITION before=OFFSET [log-start-seen=OFFSET]."""
    partition = session.partition(call.word("a partition"))
    before = call.number("before")
    known = session.broker.state.partitions[partition]
    assert known is not None
    seen = call.number("log-start-seen", known.log_start_offset)
    below = sum(size for last, size in session.broker.log(partition).values() if last < before)
    call.finish()
    decision, facts = session.decide(
        DeleteRecords(partition, before, seen, below, compactions_seen=known.compactions)
    )
    yield from facts
    answer = decision.answer
    yield answer_line(error_text(answer.error) if answer.error else f"log start {answer.low_watermark}")


REQUESTS: dict[str, Callable[[Session, Call], Any]] = {
    "InitProducerId": _init_producer_id,
    "Produce": _produce,
    "AddPartitionsToTxn": _add_partitions_to_txn,
    "AddOffsetsToTxn": _add_offsets_to_txn,
    "TxnOffsetCommit": _txn_offset_commit,
    "EndTxn": _end_txn,
    "OffsetCommit": _offset_commit,
    "OffsetFetch": _offset_fetch,
    "BeginAttempt": _begin_attempt,
    "CommitTransactions": _commit_transactions,
    "DeleteRecords": _delete_records,
    "UpdateFeatures": _update_features,
}
