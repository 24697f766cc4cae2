"""A data directory that was damaged while no broker had it: the start refuses and deletes nothing; repair.

Real processes: ``semel serve`` is stopped or killed, something happens to its files, and it is started again.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.clients.raw import RawClient, batch

import semel
from semel.server.run import EXIT_DAMAGED, EXIT_LOCKED
from semel.store.embedded.chunk_header import HEADER_BYTES
from semel.wire.errors import ErrorCode
from semel.wire.messages import PartitionData
from semel.wire.records import iter_batches

RECORDS = 40
KEPT = {"log.retention.ms": -1}
OFTEN = ("--set", "log.retention.check.interval.ms=50", "--set", "log.retention.ms=-1")
"""What is not known any more is swept at once, if it is swept at all."""


def _semel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _filled(directory: Path, *options: str, kill: bool) -> BrokerProcess:
    """A broker that acknowledged some records and ended."""
    broker = BrokerProcess(directory, *(options or OFTEN))
    if kill:
        broker.start()
        _fill(broker.bootstrap)
        broker.kill()
    else:
        with semel.embedded(directory, settings=KEPT) as embedded:
            _fill(embedded.bootstrap_servers)
    return broker


def _fill(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        client.create_topic("orders")
        for number in range(RECORDS):
            assert client.produce("orders", batch(number)).base_offset == number


def _refusal(broker: BrokerProcess) -> str:
    """What a broker says that does not start, and that nothing was changed by it."""
    chunks = broker.directory / "chunks"
    before = {path: path.read_bytes() for path in chunks.glob("*")}
    ended = _semel("serve", "--data", str(broker.directory), "--listen", "127.0.0.1:0")
    assert ended.returncode == EXIT_DAMAGED, ended.stderr
    assert {path: path.read_bytes() for path in chunks.glob("*")} == before
    return ended.stderr


def _served(broker: BrokerProcess) -> list[int]:
    with RawClient(broker.bootstrap) as client:
        return [header.base_offset for header in client.headers("orders")]


@pytest.mark.parametrize(
    ("how", "kill"),
    [
        ("removed", True),
        ("truncated", False),
        pytest.param("removed", False, marks=pytest.mark.slow),
        pytest.param("truncated", True, marks=pytest.mark.slow),
    ],
)
def test_a_lost_ledger_loses_nothing_else(tmp_path: Path, kill: bool, how: str) -> None:
    """It used to be an empty log, and the next sweep deleted every chunk."""
    broker = _filled(tmp_path / "data", kill=kill)
    (tmp_path / "kept").mkdir()
    for path in broker.directory.glob("ledger.db*"):
        path.rename(tmp_path / "kept" / path.name)
        if how == "truncated":
            path.write_bytes(b"")
    said = _refusal(broker)
    assert "The broker refuses to start" in said
    assert f"ledger.db is {'missing' if how == 'removed' else 'empty'}" in said
    assert "semel repair" in said
    assert "nothing that was acknowledged is lost" not in said
    # Put back, all of it is there.
    for path in (tmp_path / "kept").iterdir():
        path.rename(broker.directory / path.name)
    with broker:
        assert _served(broker) == list(range(RECORDS))


def test_records_come_back_without_a_ledger(tmp_path: Path) -> None:
    broker = _filled(tmp_path / "data", kill=False)
    for path in broker.directory.glob("ledger.db*"):
        path.unlink()
    looked = _semel("repair", str(broker.directory))
    assert looked.returncode == 1
    assert "Nothing was changed. To do it: semel repair" in looked.stdout
    assert "lost by that: names of topics" in looked.stdout
    assert _semel("repair", str(broker.directory), "--apply").returncode == 1
    done = _semel("repair", str(broker.directory), "--apply", "--salvage")
    assert done.stdout.splitlines()[-1] == f"Salvaged {RECORDS} records in {RECORDS} batches of 1 chunks."
    with broker, RawClient(broker.bootstrap) as client:
        assert [header.base_offset for header in client.headers("salvaged")] == list(range(RECORDS))


def test_a_damaged_wal_is_no_shorter_log(tmp_path: Path) -> None:
    """One bit in the middle: half of the records were gone, and their offsets given again."""
    broker = _filled(tmp_path / "data", "--set", "log.retention.ms=-1", kill=True)
    path = broker.directory / "wal-0"
    data = bytearray(path.read_bytes())
    # The beginning of a frame, some before the last.
    at = data.rindex(b"SMLF", 0, data.rindex(b"SMLF") - 2_000)
    data[at + 60] ^= 1
    path.write_bytes(data)
    assert "the WAL lacks commit" in _refusal(broker)
    looked = _semel("repair", str(broker.directory))
    assert "go on after commit" in looked.stdout
    assert _semel("repair", str(broker.directory), "--apply").returncode == 0
    with broker:
        # The ledger had followed it by then.
        assert len(_served(broker)) <= RECORDS
        with RawClient(broker.bootstrap) as client:
            assert client.produce("orders", batch(0)).error_code == ErrorCode.NONE


def test_one_damaged_batch_hides_no_good_ones(tmp_path: Path) -> None:
    broker = _filled(tmp_path / "data", kill=False)
    (chunk,) = (broker.directory / "chunks").glob("*")
    data = bytearray(chunk.read_bytes())
    length = len(batch(17))
    # Batches are all of one length, and lie behind the header of the chunk.
    data[HEADER_BYTES + 17 * length + 65] ^= 8
    chunk.write_bytes(data)
    checked = _semel("check-storage", str(broker.directory))
    assert checked.returncode == 1
    assert "orders-0, offsets 17 to 17: its checksum is wrong" in checked.stdout
    with broker, RawClient(broker.bootstrap) as client:
        assert _offsets(client.fetch("orders", 0)) == list(range(17))
        for _ in range(5):
            assert client.fetch("orders", 17).error_code == ErrorCode.CORRUPT_MESSAGE
        assert _offsets(client.fetch("orders", 18)) == list(range(18, RECORDS))
        busy = _semel("check-storage", str(broker.directory))
        assert (busy.returncode, "is in use by process" in busy.stderr) == (1, True)
    log = broker.log.read_text()
    assert log.count("offsets 17 to 17 of topic orders partition 0 is damaged") == 1


def test_a_damaged_page_of_the_ledger_is_an_error_with_a_code(tmp_path: Path) -> None:
    """The page is read by a fetch and by no start. Requests that do not need it are answered."""
    broker = _filled(tmp_path / "data", "--set", "log.retention.ms=-1", kill=False)
    path = broker.directory / "ledger.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as ledger:
        (page,) = ledger.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'batches'").fetchone()
    data = bytearray(path.read_bytes())
    data[page * 4_096 - 100] ^= 1
    path.write_bytes(data)
    for command in ("check-storage", "repair"):
        looked = _semel(command, str(broker.directory))
        assert looked.returncode == 1
        assert f"page {page} of ledger.db: the checksum is wrong" in looked.stdout
    with broker, RawClient(broker.bootstrap) as client:
        for _ in range(5):
            assert client.fetch("orders", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        client.create_topic("others")
    log = broker.log.read_text()
    assert log.count("is damaged") == 1
    assert "Traceback" not in log


def test_a_backup_of_a_running_broker_is_served(tmp_path: Path) -> None:
    broker = _filled(tmp_path / "data", kill=False)
    with broker:
        made = _semel("backup", str(broker.directory), str(tmp_path / "copy"))
        assert (made.returncode, made.stderr) == (0, "")
        assert f"{RECORDS} batches" in made.stdout
        again = _semel("backup", str(broker.directory), str(tmp_path / "copy"))
        assert (again.returncode, "exists and is not an empty directory" in again.stderr) == (1, True)
    assert _semel("repair", str(tmp_path / "copy")).returncode == 0
    with BrokerProcess(tmp_path / "copy", *OFTEN) as restored, RawClient(restored.bootstrap) as client:
        assert _served(restored) == list(range(RECORDS))
        assert client.produce("orders", batch(0)).base_offset == RECORDS


def test_removing_the_lock_lets_no_second_broker_in(tmp_path: Path) -> None:
    with _filled(tmp_path / "data", kill=False) as broker:
        (broker.directory / "lock").unlink()
        second = _semel("serve", "--data", str(broker.directory), "--listen", "127.0.0.1:0")
        assert second.returncode == EXIT_LOCKED
        assert _semel("repair", str(broker.directory), "--apply", "--salvage").returncode == 1
        assert _served(broker) == list(range(RECORDS))


def _offsets(data: PartitionData) -> list[int]:
    return [header.base_offset for _, header in iter_batches(data.records or b"")]


def test_what_is_whole_is_said_to_be(tmp_path: Path) -> None:
    broker = _filled(tmp_path / "data", kill=True)
    checked = _semel("check-storage", str(broker.directory))
    # What only the WAL has is not at rest yet.
    assert checked.returncode == 0, checked
    assert checked.stdout.endswith("0 damaged batches, 0 other problems.\n")
    looked = _semel("repair", str(broker.directory))
    assert (looked.returncode, looked.stdout[:16]) == (0, "Nothing is wrong")
