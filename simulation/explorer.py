"""Walks every interleaving of a small cluster, and checks every state.

Three brokers, two partitions and two transactions (``small_world``) with a crash, a lost answer and a
take-over at every step. States that are equal are visited once. ``python -m simulation.explorer``.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from semel.core.types import PartitionKey, TransactionKey, TransactionState
from semel.wire.records import read_header, read_marker
from simulation.small_ledger import content_of
from simulation.small_steps import read, steps
from simulation.small_world import ENGINE, IDS, PARTITIONS, PRODUCERS, Client, World

PROBLEMS_MAX = 5


@dataclass(slots=True)
class Explored:
    """The result of an exploration."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    """States in which both clients have their last answer, without an error."""
    is_complete: bool = True
    problems: list[str] = field(default_factory=list)


def explore(*, crashes: int, lost: int, lapses: int, states_max: int = 10_000_000) -> Explored:
    """Visit every state that can be reached with at most so many faults of each kind."""
    found = Explored()
    first = World.initial(crashes=crashes, lost=lost, lapses=lapses)
    read(first)
    seen = {first.key()}
    # Paths are kept as pairs of a step and the path before it.
    waiting: list[tuple[World, Any]] = [(first, None)]
    while waiting and len(found.problems) < PROBLEMS_MAX:
        world, path = waiting.pop()
        found.states += 1
        found.ends += all(_is_done(client) for client in world.clients.values())
        if found.states >= states_max:
            found.is_complete = False
            break
        for name, take in steps(world):
            after = world.copy()
            found.steps += 1
            try:
                take(after)
                read(after)
                key = after.key()
                if key in seen:
                    continue
                seen.add(key)
                problem = next(violations(after), None)
            except AssertionError as error:
                problem = f"assertion: {error}"
            if problem is not None:
                found.problems.append(f"{problem}, after: {'; '.join(_told((name, path)))}")
                continue
            waiting.append((after, (name, path)))
    return found


def explore_with(faults: tuple[int, int, int]) -> Explored:
    """Explore with at most so many crashes, lost answers and lapsed leases."""
    crashes, lost, lapses = faults
    return explore(crashes=crashes, lost=lost, lapses=lapses)


def _is_done(client: Client) -> bool:
    return client.is_over and not client.answers[-1].error


def _told(path: Any) -> list[str]:
    told: list[str] = []
    while path is not None:
        name, path = path
        told.append(name)
    return told[::-1]


def violations(world: World) -> Iterator[str]:
    """Return what is wrong in a state."""
    if world.ledger.problems is None:
        world.ledger.problems = list(_logs(world))
    yield from world.ledger.problems
    yield from _owners(world)
    yield from _copies(world)
    yield from _acknowledged(world)


def _logs(world: World) -> Iterator[str]:
    """Batches come before the marker of their transaction, and markers agree with the outcome."""
    markers: dict[int, set[bool]] = {}
    marked: dict[int, set[PartitionKey]] = {}
    for key in PARTITIONS:
        ended: set[tuple[int, int]] = set()
        for stored in world.ledger.batches[key]:
            batch = content_of(stored.location.chunk_id)
            header = read_header(batch)
            if not header.is_control:
                if (header.producer_id, header.producer_epoch) in ended:
                    yield f"{key.index}: a batch of an ended transaction at {stored.base_offset}"
                continue
            marker = read_marker(batch)
            assert marker is not None
            ended.add((header.producer_id, 0))
            markers.setdefault(header.producer_id, set()).add(marker.commit)
            marked.setdefault(header.producer_id, set()).add(key)
    for name in IDS:
        transaction = world.ledger.values[TransactionKey, TransactionKey(name)]
        outcomes = markers.get(PRODUCERS[name], set())
        open_in = [
            key.index
            for key in PARTITIONS
            for each in world.ledger.values[PartitionKey, key].open_transactions
            if each.producer_id == PRODUCERS[name]
        ]
        if transaction.state is TransactionState.ONGOING:
            if outcomes:
                yield f"{name} is open, and there is a marker of it"
            if not set(open_in) <= {key.index for key in transaction.partitions}:
                yield f"{name} is open in a partition that it does not know"
        elif open_in:
            yield f"{name} has ended, and is open in {open_in}"
        expected = {TransactionState.COMPLETE_COMMIT: {True}, TransactionState.COMPLETE_ABORT: {False}}
        if outcomes and outcomes != expected.get(transaction.state, outcomes):
            yield f"{name} is {transaction.state.name}, and its markers say {outcomes}"


def _owners(world: World) -> Iterator[str]:
    """At most one broker serves a shard, and it can commit."""
    for shard in world.owners:
        serving = [
            broker
            for broker, member in world.members.items()
            if shard in member.adopted and member.is_serving
        ]
        if len(serving) > 1:
            yield f"brokers {serving} serve the same shard"
        if any(world.epochs[broker] != world.members[broker].epoch for broker in serving):
            yield f"broker {serving} serves and was replaced"


def _copies(world: World) -> Iterator[str]:
    """A version in memory has a value; with the version of the ledger, it has the value of the ledger."""
    values, versions = world.ledger.values, world.ledger.versions
    for broker, member in world.members.items():
        if member.job is not None:
            continue
        for key, version in member.state.versions.items():
            kind = type(key)
            if key not in member.state.tables[kind]:
                yield f"broker {broker} has a version of {key} and no value"
            elif version == versions.get(key, 0) and member.state.tables[kind][key] != values.get(
                (kind, key)
            ):
                yield f"broker {broker} has another value of {key} with the same version"


def _acknowledged(world: World) -> Iterator[str]:
    """An acknowledged end is in the ledger, and visible at the brokers that serve its partitions."""
    for name, client in world.clients.items():
        if not _is_done(client):
            continue
        transaction = world.ledger.values[TransactionKey, TransactionKey(name)]
        expected = TransactionState.COMPLETE_ABORT if client.aborts else TransactionState.COMPLETE_COMMIT
        if transaction.state is not expected:
            yield f"the end of {name} was acknowledged, and it is {transaction.state.name}"
        yield from _shown(world, name)


def _shown(world: World, name: str) -> Iterator[str]:
    for broker, member in world.members.items():
        if not member.is_serving:
            continue
        for key, shown in member.published.items():
            if ENGINE.shard(key) not in member.adopted:
                continue
            is_open = any(each.producer_id == PRODUCERS[name] for each in shown.open_transactions)
            stored = world.ledger.values[PartitionKey, key]
            is_marked = len(world.ledger.batches[key]) > 0 and shown.high_watermark < stored.high_watermark
            if is_open or (is_marked and _lacks(world, name, key, shown.high_watermark)):
                yield f"the end of {name} was acknowledged, and broker {broker} hides it in {key.index}"


def _lacks(world: World, name: str, key: PartitionKey, high_watermark: int) -> bool:
    """Whether the marker of a transaction is at or after an offset."""
    for stored in world.ledger.batches[key]:
        header = read_header(content_of(stored.location.chunk_id))
        if header.is_control and header.producer_id == PRODUCERS[name]:
            return bool(stored.base_offset >= high_watermark)
    return False


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation.explorer", description=__doc__)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--lost", type=int, default=1)
    parser.add_argument("--lapses", type=int, default=1)
    parser.add_argument("--states-max", type=int, default=10_000_000)
    options = parser.parse_args()
    started = time.monotonic()
    found = explore(
        crashes=options.crashes, lost=options.lost, lapses=options.lapses, states_max=options.states_max
    )
    print(  # noqa: T201 - a command line
        f"{found.states} states, {found.steps} steps, {found.ends} ends,"
        f" {'all of them' if found.is_complete else 'not all'}, {time.monotonic() - started:.0f} s"
    )
    for problem in found.problems:
        print(f"  {problem}")  # noqa: T201 - a command line
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
