"""What happens without a request: topics, time, timeouts, crashes, compaction; and looks at the state."""

from collections.abc import Callable, Iterator
from typing import Any

from transcripts.parsing import Call, TranscriptError, duration_ms
from transcripts.printing import (
    duration_text,
    error_text,
    fact_name,
    facts_text,
    partition_text,
    pending_text,
    topic_id,
    transaction_text,
)
from transcripts.session import Client, Session, answer_line

from semel.core.facts import Put
from semel.core.log.compaction import ReplaceBatches
from semel.core.topics import CreateTopic
from semel.core.types import Decision, PendingKey, Rewritten, TransactionKey

Lines = Iterator[str]


def _topic(session: Session, call: Call) -> Lines:
    """NAME [partitions=1] [CONFIG=VALUE…]: create a topic."""
    name = call.word("a name")
    partitions = call.number("partitions", 1)
    configs: dict[str, str | None] = dict(call.options)
    call.options.clear()
    call.finish()
    decision, facts = session.decide(CreateTopic(name, topic_id(name), partitions, configs))
    yield from facts
    yield answer_line(error_text(decision.answer.error))


def _clock(session: Session, call: Call) -> Lines:
    """+DURATION: time passes."""
    passed = call.word("a duration")
    call.finish()
    session.broker.now_ms += duration_ms(passed.removeprefix("+"))
    yield f"now {duration_text(session.broker.now_ms)}"


def _timeouts(session: Session, call: Call) -> Lines:
    """Abort what is open for too long, as housekeeping does every second."""
    call.finish()
    yield from _aborted(session.broker.abort_overdue())


def _aborted(decisions: dict[str, Decision]) -> Lines:
    aborted = [each for each, decision in decisions.items() if decision.answer]
    for each in aborted:
        yield from facts_text(decisions[each])
    yield f"aborted: {' '.join(aborted) or 'none'}"


def _restart(session: Session, call: Call) -> Lines:
    """kill -9 and a new process: the facts are all that is left, and all of them are."""
    call.finish()
    session.broker.restart()
    yield f"term {session.broker.state.term}"


def _power_loss(session: Session, call: Call) -> Lines:
    """The machine dies: unsynced facts are lost, and a new term begins."""
    call.finish()
    lost = [fact_name(fact) for fact in session.broker.unsynced]
    decisions = session.broker.lose_power()
    yield f"term {session.broker.state.term}, lost: {', '.join(lost) or 'nothing'}"
    yield from _aborted(decisions)


def _flush(session: Session, call: Call) -> Lines:
    """What is unsynced is flushed; a broker does so after a tenth of a second."""
    call.finish()
    count = len(session.broker.unsynced)
    session.broker.flush()
    yield f"flushed: {count} facts"


def _allow_two_phase(session: Session, call: Call) -> Lines:
    """``transaction.two.phase.commit.enable=true``."""
    call.finish()
    session.allows_two_phase = True
    yield "transaction.two.phase.commit.enable=true"


def _given(session: Session, call: Call) -> Lines:
    """epoch=N: the client has used this many epochs. Makes the fact true without the requests before it."""
    held = session.named(call.client or "")
    epoch = call.number("epoch")
    call.finish()
    known = session.broker.state.transactions[TransactionKey(held.transactional_id or "")]
    assert known is not None
    changed = known.but(epoch=epoch)
    session.broker.become(Put.of(changed))
    session.clients[call.client or ""] = Client(held.transactional_id, held.version, held.producer_id, epoch)
    yield f"Put transaction {transaction_text(changed)}"


def _swap(session: Session, call: Call) -> Lines:
    """PARTITION [rewritten=OFFSET,…] [removed=OFFSET,…] up-to=OFFSET log-start-seen=N swaps-seen=N."""
    name = call.word("a partition")
    partition = session.partition(name)
    log = session.broker.log(partition)
    rewritten, removed = call.numbers("rewritten"), call.numbers("removed")
    if unknown := {*rewritten, *removed} - set(log):
        raise TranscriptError(f"no batch of {name} begins at {' '.join(map(str, sorted(unknown)))}")
    left = tuple(Rewritten(base, log[base][0], 0, log[base][1] // 2) for base in rewritten)
    command = ReplaceBatches(
        partition,
        call.number("log-start-seen"),
        call.number("swaps-seen"),
        left,
        tuple(bytes(each.size_bytes) for each in left),
        removed,
        sum(log[base][1] for base in (*rewritten, *removed)),
        call.number("up-to"),
        name.partition("/")[0],
    )
    call.finish()
    decision, facts = session.decide(command)
    yield from facts
    yield answer_line("swapped" if decision.answer else "not swapped")


def _log(session: Session, call: Call) -> Lines:
    """PARTITION: the offsets of its batches."""
    partition = session.partition(call.word("a partition"))
    call.finish()
    log = session.broker.log(partition)
    ranges = (str(base) if base == last else f"{base}-{last}" for base, (last, _) in log.items())
    yield f"batches at {' '.join(ranges) or 'no offset'}"


def _state(session: Session, call: Call) -> Lines:
    """PARTITION | transaction ID | group ID."""
    what = call.word("a partition, a transaction or a group")
    state = session.broker.state
    if what == "transaction":
        transaction = state.transactions.get(TransactionKey(call.word("a transactional id")))
        call.finish()
        yield transaction_text(transaction) if transaction else "unknown"
        return
    if what == "group":
        group_id = call.word("a group")
        call.finish()
        committed = {
            f"{key.topic}/{key.partition}={value.offset}"
            for key, value in state.offsets.items()
            if key.group_id == group_id and value is not None
        }
        yield f"committed: {' '.join(sorted(committed)) or 'none'}"
        yield f"pending: {pending_text(state.pending.get(PendingKey(group_id)) or ())}"
        return
    partition = state.partitions[session.partition(what)]
    call.finish()
    assert partition is not None
    yield partition_text(partition)
    for each in partition.open_transactions:
        yield f"open: producer {each.producer_id} from offset {each.first_offset}"


ACTS: dict[str, Callable[[Session, Call], Any]] = {
    "topic": _topic,
    "clock": _clock,
    "timeouts": _timeouts,
    "restart": _restart,
    "power-loss": _power_loss,
    "flush": _flush,
    "allow-two-phase": _allow_two_phase,
    "given": _given,
    "swap": _swap,
    "log": _log,
    "state": _state,
}
