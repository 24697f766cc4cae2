"""Invariants of disk and memory that hold in every history (W1–W11 of the test plan)."""

from collections.abc import Iterator, Mapping
from typing import Any

from semel.core.entities import ABSENT, VERSIONED
from semel.core.transactions.commands import ReadFeatures
from semel.core.types import ClusterKey, PartitionKey, TransactionKey, TransactionState
from semel.wire.records import read_header, read_marker
from simulation.disk import Disk
from simulation.ledger import SimulatedLedger
from simulation.shared_ledger import VersionedFold


async def violations_of_one(disk: Disk, broker: Any) -> list[str]:
    """Return the violations at the end of a history, when all is flushed and no transaction is open."""
    while True:
        await broker.flush()
        # Checked right after a commit, when the state in memory equals the durable state.
        problems: list[str] | None
        problems = await broker.submit([ReadFeatures()]).map(lambda _: _between_commits(disk, broker))
        if problems is not None:
            return problems


def _between_commits(disk: Disk, broker: Any) -> list[str] | None:
    """Return None if unflushed work makes it too early to compare."""
    if broker._loop.unsynced:
        return None
    ledger: SimulatedLedger = broker.store.ledger
    state = broker._loop.state
    found = list(_of_state(state, ledger))
    open_ids = {
        key.transactional_id
        for (kind, key), value in ledger.values.items()
        if kind is TransactionKey and value.state is TransactionState.ONGOING
    }
    if open_ids != set(state.ongoing):
        found.append(
            f"open transactions are {sorted(open_ids)} in the ledger, {sorted(state.ongoing)} in memory"
        )
    found += of_logs(disk.bytes, ledger)
    if disk.answered > len(disk.commits):
        found.append("a commit that was answered is gone")
    return found


def of_copies(broker: Any, ledger: VersionedFold) -> list[str]:
    """Return where a broker differs from the ledger: in values, versions, owners or published values."""
    state, owns = broker._loop.state, broker._loop._owns
    # Each broker counts producer ids in its own row.
    found = list(_of_state(state, ledger, without=ClusterKey))
    for kind, table in state.tables.items():
        for key in table:
            if not owns(key):
                found.append(f"{key} is in memory, though another broker owns it")
            elif kind in VERSIONED and state.versions.get(key) != ledger.versions.get(key, ABSENT):
                have, is_there = state.versions.get(key), ledger.versions.get(key, ABSENT)
                found.append(f"{key} has version {have} in memory and {is_there} in the ledger")
    for key, shown in broker.reads._views._views.items():
        stored = ledger.values.get((PartitionKey, key))
        if owns(key) and shown != stored:
            found.append(f"{key} is {shown} for readers and {stored} in the ledger")
    return found


def of_logs(contents: Mapping[int, bytes], ledger: SimulatedLedger) -> list[str]:
    """Return what is wrong with the logs in the ledger."""
    return [f"{key}: {each}" for key in ledger.batches for each in _of_log(contents, ledger, key)]


def _of_state(state: Any, ledger: SimulatedLedger, *, without: type | None = None) -> Iterator[str]:
    """The state in memory equals a replay of the ledger (W11)."""
    for kind, table in state.tables.items():
        for key, value in table.items():
            stored = ledger.values.get((kind, key))
            if value != stored and kind is not without:
                yield f"{key} is {value} in memory and {stored} in the ledger"


def _of_log(contents: Mapping[int, bytes], ledger: SimulatedLedger, key: PartitionKey) -> Iterator[str]:
    """Offsets are dense, sequences are consecutive, markers end open transactions (W1–W4)."""
    value: Any = ledger.values.get((PartitionKey, key))
    if value is None:
        return
    expected = None
    last: dict[tuple[int, int], int] = {}
    open_epochs: dict[int, int] = {}
    is_journal = _is_journal(ledger, key)
    for stored in ledger.batches[key]:
        if expected is not None and stored.base_offset != expected:
            yield f"after offset {expected - 1} comes {stored.base_offset}"
        expected = stored.last_offset + 1
        batch = contents[stored.location.chunk_id]
        header = read_header(batch)
        if header.is_control:
            marker = read_marker(batch)
            if header.producer_id not in open_epochs and value.log_start_offset == 0:
                yield f"a marker at {stored.base_offset} ends nothing"
            elif header.producer_epoch < open_epochs.get(header.producer_id, 0):
                yield f"a marker at {stored.base_offset} of an older epoch"
            open_epochs.pop(header.producer_id, None)
            assert marker is not None
            continue
        if header.producer_id < 0:
            continue
        pair = (header.producer_id, header.producer_epoch)
        # Batches that were staged and dropped have used up their sequences.
        if pair in last and not is_journal and header.base_sequence != (last[pair] + 1) % 2**31:
            yield f"at {stored.base_offset} sequence {header.base_sequence} follows {last[pair]}"
        last[pair] = header.last_sequence
        if header.is_transactional and not is_journal:
            open_epochs[header.producer_id] = header.producer_epoch
    if expected is not None and expected != value.high_watermark:
        yield f"the log ends at {expected}, the high watermark is {value.high_watermark}"
    if set(open_epochs) != {each.producer_id for each in value.open_transactions}:
        yield f"open in the log: {sorted(open_epochs)}, by the partition: {value.open_transactions}"


def _is_journal(ledger: SimulatedLedger, key: PartitionKey) -> bool:
    topic = next(
        value
        for value in ledger.values.values()
        if hasattr(value, "topic_id") and hasattr(value, "configs") and value.topic_id == key.topic_id
    )
    return bool(topic.configs.get("semel.visibility") == "journal")
