"""Bugs for correct histories: each changes the recorded operations to what a broken log would have caused.

A bug is a function of a history and a random generator. It returns the changed history, or None if it does
not apply to this history.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from semel.check import (
    FAIL,
    OK,
    Abort,
    Begin,
    Commit,
    Ends,
    Init,
    OffsetFetch,
    Operation,
    Poll,
    Produce,
    SendOffsets,
    Topic,
)

History = list[Operation]
Bug = Callable[[Sequence[Operation], random.Random], History | None]

#: The name of a bug, the anomalies that it may be found as, and the bug.
BUGS: dict[str, tuple[set[str], Bug]] = {}


def bug(*found_as: str) -> Callable[[Bug], Bug]:
    def add(function: Bug) -> Bug:
        BUGS[function.__name__] = (set(found_as), function)
        return function

    return add


def _some(rng: random.Random, found: Sequence[Any]) -> Any:
    return rng.choice(found) if found else None


def _committed(history: Sequence[Operation]) -> set[Any]:
    return {each.transaction for each in history if isinstance(each, Commit) and each.outcome == OK}


def _journals(history: Sequence[Operation]) -> set[str]:
    return {each.topic for each in history if isinstance(each, Topic)}


def _is_final(each: Operation) -> bool:
    return isinstance(each, Poll) and str(each.process).startswith("end.")


def _without(history: Sequence[Operation], topic: str, partition: int, values: set[Any]) -> History:
    """Return the history in which no reader got these values."""
    changed: History = []
    for each in history:
        if isinstance(each, Poll) and (each.topic, each.partition) == (topic, partition):
            each = each._replace(records=tuple(record for record in each.records if record[1] not in values))
        changed.append(each)
    return changed


def _swap(history: Sequence[Operation], old: Operation, new: Operation) -> History:
    return [new if each is old else each for each in history]


def _visible(history: Sequence[Operation]) -> Iterator[tuple[Produce, int, Poll]]:
    """Yield acknowledged values that are seen at the end: the produce, the index of the value, the poll."""
    committed = _committed(history)
    places = {}
    for each in history:
        if isinstance(each, Poll) and _is_final(each) and each.isolation == "read_committed":
            for _, value in each.records:
                places[each.topic, each.partition, value] = each
    for each in history:
        if not isinstance(each, Produce) or each.outcome != OK:
            continue
        if each.transaction is None or each.transaction in committed:
            for index, value in enumerate(each.values):
                if (each.topic, each.partition, value) in places:
                    yield each, index, places[each.topic, each.partition, value]


@bug("lost-write", "torn-transaction", "gap")
def lose_a_write(history: Sequence[Operation], rng: random.Random) -> History | None:
    found = _some(rng, [each for each in _visible(history) if each[0].topic != "short"])
    if found is None:
        return None
    produce, index, _ = found
    return _without(history, produce.topic, produce.partition, {produce.values[index]})


@bug("torn-transaction")
def tear_a_transaction(history: Sequence[Operation], rng: random.Random) -> History | None:
    by_name: dict[Any, set[tuple[str, int]]] = {}
    for produce, _, _ in _visible(history):
        if produce.transaction is not None:
            by_name.setdefault(produce.transaction, set()).add((produce.topic, produce.partition))
    name = _some(rng, [name for name, places in by_name.items() if len(places) > 1])
    if name is None:
        return None
    gone = rng.choice(sorted(by_name[name]))
    values = {
        value
        for each in history
        if isinstance(each, Produce) and each.transaction == name and (each.topic, each.partition) == gone
        for value in each.values
    }
    return _without(history, *gone, values)


@bug("aborted-read")
def show_an_aborted_record(history: Sequence[Operation], rng: random.Random) -> History | None:
    aborted = {each.transaction for each in history if isinstance(each, Abort) and each.outcome == OK}
    values = {
        (each.topic, each.partition, value)
        for each in history
        if isinstance(each, Produce) and each.transaction in aborted
        for value in each.values
    }
    for each in history:
        if isinstance(each, Poll) and each.isolation == "read_uncommitted" and _is_final(each):
            for record in each.records:
                if (each.topic, each.partition, record[1]) in values:
                    return _swap(history, each, each._replace(isolation="read_committed"))
    return None


@bug("early-read")
def show_an_open_transaction(history: Sequence[Operation], rng: random.Random) -> History | None:
    commits: dict[int | str | None, Commit] = {
        each.transaction: each for each in history if isinstance(each, Commit) and each.outcome == OK
    }
    seen = [each for each in _visible(history) if each[0].transaction in commits]
    found = _some(rng, [each for each in seen if commits[each[0].transaction].started > each[0].started + 1])
    if found is None:
        return None
    produce, index, poll = found
    record = next(each for each in poll.records if each[1] == produce.values[index])
    moment = commits[produce.transaction].started - 1
    early = Poll("early", moment, moment, OK, produce.topic, produce.partition, (record,))
    return [*history, early]


@bug("precommitted-read")
def show_a_transaction_its_own_record(history: Sequence[Operation], rng: random.Random) -> History | None:
    found = _some(rng, [each for each in _visible(history) if each[0].transaction is not None])
    if found is None:
        return None
    produce, index, poll = found
    record = next(each for each in poll.records if each[1] == produce.values[index])
    own = poll._replace(process="own", records=(record,), transaction=produce.transaction, position=None)
    return [*history, own]


@bug("phantom")
def show_what_nobody_sent(history: Sequence[Operation], rng: random.Random) -> History | None:
    poll = _some(rng, [each for each in history if isinstance(each, Poll) and each.records])
    if poll is None:
        return None
    (offset, _), *rest = poll.records
    return _swap(history, poll, poll._replace(records=((offset, "garbage"), *rest)))


@bug("duplicate")
def write_a_record_twice(history: Sequence[Operation], rng: random.Random) -> History | None:
    found = _some(rng, [each for each in _visible(history) if each[0].is_idempotent])
    if found is None:
        return None
    produce, index, poll = found
    more = (poll.records[-1][0] + 1, produce.values[index])
    return _swap(history, poll, poll._replace(records=(*poll.records, more), position=more[0] + 1))


@bug("inconsistent-offset")
def show_readers_different_records(history: Sequence[Operation], rng: random.Random) -> History | None:
    polls = [each for each in history if isinstance(each, Poll) and len(each.records) > 1 and _is_final(each)]
    poll = _some(rng, [each for each in polls if each.isolation == "read_committed"])
    if poll is None:
        return None
    (first, one), (second, two) = poll.records[:2]
    other = poll._replace(process="other", records=((first, two), (second, one)))
    return [*history, other]


@bug("wrong-acknowledgement")
def acknowledge_a_wrong_offset(history: Sequence[Operation], rng: random.Random) -> History | None:
    found = [each for each in _visible(history) if each[0].offset is not None and each[0].is_idempotent]
    found = [each for each in found if len(each[2].records) > 1]
    chosen = _some(rng, found)
    if chosen is None:
        return None
    produce, index, poll = chosen
    other = next(each for each in poll.records if each[1] != produce.values[index])
    return _swap(history, produce, produce._replace(offset=other[0] - index))


@bug("skipped-poll")
def skip_in_a_poll(history: Sequence[Operation], rng: random.Random) -> History | None:
    """Let a reader skip a record that the last reader gets."""
    polls = [each for each in history if isinstance(each, Poll) and len(each.records) > 2]
    polls = [each for each in polls if each.isolation == "read_committed" and not _is_final(each)]
    poll = _some(rng, [each for each in polls if each.topic != "short"])
    if poll is None:
        return None
    first, _, *rest = poll.records
    return _swap(history, poll, poll._replace(records=(first, *rest)))


@bug("nonmonotonic-poll")
def hand_out_again(history: Sequence[Operation], rng: random.Random) -> History | None:
    polls = [each for each in history if isinstance(each, Poll) and len(each.records) > 1]
    poll = _some(rng, [each for each in polls if each.isolation != "commit_order"])
    if poll is None:
        return None
    return _swap(history, poll, poll._replace(records=(*poll.records, poll.records[0])))


@bug("gap")
def leave_a_gap_in_a_journal(history: Sequence[Operation], rng: random.Random) -> History | None:
    polls = [each for each in history if isinstance(each, Poll) and each.records]
    poll = _some(rng, [each for each in polls if each.topic in _journals(history) and _is_final(each)])
    if poll is None:
        return None
    changed: History = []
    last = poll.records[-1][0]
    for each in history:
        if isinstance(each, Poll) and (each.topic, each.partition) == (poll.topic, poll.partition):
            moved = tuple((offset + 7 * (offset == last), value) for offset, value in each.records)
            each = each._replace(records=moved, position=None)
        changed.append(each)
    return changed if len(poll.records) > 1 else None


@bug("zombie-commit")
def let_a_zombie_commit(history: Sequence[Operation], rng: random.Random) -> History | None:
    begins = {each.transaction: each for each in history if isinstance(each, Begin)}
    commits = [each for each in history if isinstance(each, Commit) and each.outcome == OK]
    own = {each.process for each in history if isinstance(each, Init) and each.outcome == OK}
    commit = _some(rng, [each for each in commits if each.process in own and each.transaction in begins])
    if commit is None:
        return None
    begin = begins[commit.transaction]
    last = max(
        each.ended
        for each in history
        if isinstance(each, Init) and each.process == commit.process and each.ended is not None
    )
    # Stretch the time, so that there is room between the two.
    changed = [_stretched(each) for each in history]
    moment = commit.started * 10 - 1
    assert moment > last * 10 or commit.started == last
    takeover = Init("usurper", moment, moment, OK, begin.transactional_id)
    return [*changed, takeover] if commit.started > last else None


def _stretched(each: Operation) -> Operation:
    if isinstance(each, Topic):
        return each
    ended: Any = None if each.ended is None else each.ended * 10  # never None in a poll
    return each._replace(started=each.started * 10, ended=ended)


@bug("two-outcomes")
def end_a_transaction_twice(history: Sequence[Operation], rng: random.Random) -> History | None:
    commit = _some(rng, [each for each in history if isinstance(each, Commit) and each.outcome == OK])
    return None if commit is None else [*history, Abort(*commit)]


def _seen_commit(history: Sequence[Operation], rng: random.Random) -> Any:
    """Choose a commit whose records were seen."""
    seen = {each[0].transaction for each in _visible(history)}
    commits = [each for each in history if isinstance(each, Commit) and each.outcome == OK]
    return _some(rng, [each for each in commits if each.transaction in seen])


@bug("error-but-committed")
def answer_a_commit_with_an_error(history: Sequence[Operation], rng: random.Random) -> History | None:
    commit = _seen_commit(history, rng)
    if commit is None:
        return None
    return _swap(history, commit, commit._replace(outcome="info", error="INVALID_TXN_STATE"))


@bug("aborted-read")
def refuse_a_commit_and_do_it(history: Sequence[Operation], rng: random.Random) -> History | None:
    commit = _seen_commit(history, rng)
    if commit is None:
        return None
    refused = commit._replace(outcome=FAIL, error="PRODUCER_FENCED")
    same = [each for each in history if isinstance(each, Commit) and each.transaction == commit.transaction]
    return [each for each in _swap(history, commit, refused) if each is refused or each not in same]


def _claims(history: Sequence[Operation]) -> list[SendOffsets]:
    committed = _committed(history)
    sends = [each for each in history if isinstance(each, SendOffsets) and each.outcome == OK]
    return [each for each in sends if each.transaction in committed]


@bug("double-claim")
def claim_input_twice(history: Sequence[Operation], rng: random.Random) -> History | None:
    claims = [each for each in _claims(history) if (each.claims[0].first or 0) > 0]
    send = _some(rng, claims)
    if send is None:
        return None
    (claim,) = send.claims
    before = [each.claims[0] for each in _claims(history) if each.claims[0].topic == claim.topic]
    if not any(each.first == 0 for each in before):
        return None
    return _swap(history, send, send._replace(claims=(claim._replace(first=0),)))


@bug("skipped-input")
def skip_input(history: Sequence[Operation], rng: random.Random) -> History | None:
    sends = _claims(history)
    for index, send in enumerate(sends):
        (claim,) = send.claims
        later = [each for each in sends[index + 1 :] if each.claims[0].topic == claim.topic]
        earlier = [each for each in sends[:index] if each.claims[0].topic == claim.topic]
        if later and earlier:
            # The records of the transaction were committed, but its input was not committed with them.
            return [
                each
                for each in history
                if not isinstance(each, SendOffsets) or each.transaction != send.transaction
            ]
    return None


@bug("lost-offset")
def forget_a_position(history: Sequence[Operation], rng: random.Random) -> History | None:
    sends = {each.claims[0].topic for each in _claims(history)}
    for each in history:
        if isinstance(each, OffsetFetch) and each.process == "end" and each.topic in sends:
            return _swap(history, each, each._replace(position=None))
    return None


@bug("phantom-offset")
def tell_a_wrong_position(history: Sequence[Operation], rng: random.Random) -> History | None:
    fetches = [each for each in history if isinstance(each, OffsetFetch) and each.process == "end"]
    fetch = _some(rng, fetches)
    return None if fetch is None else _swap(history, fetch, fetch._replace(position=100_000))


@bug("hanging-transaction")
def leave_a_transaction_open(history: Sequence[Operation], rng: random.Random) -> History | None:
    ends = [each for each in history if isinstance(each, Ends) and each.is_settled and each.high_watermark]
    chosen = _some(rng, ends)
    if chosen is None:
        return None
    return _swap(history, chosen, chosen._replace(last_stable=chosen.high_watermark - 1))


@bug("watermark-regress")
def go_back_with_the_watermark(history: Sequence[Operation], rng: random.Random) -> History | None:
    ends = [each for each in history if isinstance(each, Ends) and each.is_settled and each.high_watermark]
    chosen = _some(rng, [each for each in ends if each.topic != "short"])
    if chosen is None:
        return None
    later = chosen._replace(started=chosen.ended + 1, ended=chosen.ended + 1, is_settled=False)
    return [*history, later._replace(high_watermark=chosen.high_watermark - 1, last_stable=None, log_start=0)]


@bug("read-past-stable")
def read_past_the_stable_offset(history: Sequence[Operation], rng: random.Random) -> History | None:
    polls = [each for each in history if isinstance(each, Poll) and each.records and _is_final(each)]
    poll = _some(rng, [each for each in polls if each.isolation == "read_committed"])
    return None if poll is None else _swap(history, poll, poll._replace(last_stable=poll.records[-1][0]))


def _exchanged(history: Sequence[Operation], where: tuple[str, int], other: dict[Any, Any]) -> History:
    """Return the history in which readers of a partition got other values at the same offsets."""
    changed: History = []
    for each in history:
        if isinstance(each, Poll) and (each.topic, each.partition) == where:
            each = each._replace(
                records=tuple((offset, other.get(value, value)) for offset, value in each.records)
            )
        changed.append(each)
    return changed


@bug("nonmonotonic-send", "wrong-acknowledgement")
def reorder_what_a_producer_sent(history: Sequence[Operation], rng: random.Random) -> History | None:
    """Exchange two records of one transaction in one partition, for all readers."""
    batches = [each for each, index, _ in _visible(history) if index == 1]
    batch = _some(rng, batches)
    if batch is None:
        return None
    one, two = batch.values[:2]
    return _exchanged(history, (batch.topic, batch.partition), {one: two, two: one})


@bug("offset-inversion", "split-transaction", "cyclic-order", "wrong-acknowledgement")
def commit_out_of_order(history: Sequence[Operation], rng: random.Random) -> History | None:
    """Exchange the first and the last record of a journal."""
    polls = [each for each in history if isinstance(each, Poll) and _is_final(each) and len(each.records) > 4]
    poll = _some(rng, [each for each in polls if each.topic in _journals(history)])
    if poll is None:
        return None
    first, last = poll.records[0][1], poll.records[-1][1]
    return _exchanged(history, (poll.topic, poll.partition), {first: last, last: first})
