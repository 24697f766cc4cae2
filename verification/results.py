"""Stores the measured results: as JSON in one file, and as a page of the documentation."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = ROOT / "results" / "verification.json"
PAGE = ROOT / "docs" / "verification.md"

WORDS = {"test": "make test", "verify": "make verify", "long": "make verify-long"}
"""The command for each size, with which the names of its rows begin."""

RENAMED = {
    "operations in them": "operations in simulated histories",
    "faults injected into them": "faults in simulated histories",
    "anomalies in them": "anomalies in simulated histories",
    "anomalies it found in them": "false alarms of the checker",
    "state machine rules": "state machine steps",
    "failures of state machines": "state machine failures",
    "acknowledged commits lost in them": "acknowledged commits lost by power loss",
    "torn or invented commits in them": "torn or invented commits after power loss",
    "neither refused nor served with everything acknowledged": "damaged directories neither refused nor served completely",
    "failures by them": "fuzzing failures",
    "pauses of the event loop by them": "event loop pauses caused by legal requests",
    "transactions that were ": "transactions ",
    "lost, doubled, torn, aborted or hanging by ": "anomalies and hangs under ",
    "lost, doubled or left open by kills of a pipeline": "records lost or doubled, and transactions left open, by pipeline kills",
    "kills of a pipeline": "pipeline kills",
    "scenarios in which the world of a pipeline changes": "scenarios with a changing environment",
    "runs in them that counted every record once": "runs that counted every record once",
    "runs in them that refused with words": "runs that refused with a message",
    "scenarios that lost, doubled, hung or failed without words": "scenarios that lost or doubled records, hung, or failed without a message",
    "failures in scenarios by name": "failures in named scenarios",
    "scenarios by name": "named scenarios",
}
"""Prefixes of row names in older result files, and their present names."""

_HEAD = """# Verification

The results of `make verify` and `make verify-long`; do not edit this page. `make test` runs the same checks in a small size and
writes nothing. The rows are explained
[below](#what-the-rows-mean), and anomalies in [checker.md](checker.md).
"""

_TABLE = """
## {word}

| check | value | target | met | seeds | seconds |
| --- | --- | --- | --- | --- | --- |
{rows}

Measured at commit {commits}.
"""

_FOOT = """
## What the rows mean

- **simulated histories**: the real rules, commit loop, reads and handlers under virtual time, with a disk that loses unflushed writes, a network that loses,
  delays and repeats requests, and clients that pause and crash. Each seed is one history; `python -m simulation --seed N` reproduces it. The checker looks for
  every anomaly in its catalogue.
- **simulated histories of share groups**: on one to five brokers. Workers take jobs from a share group, write results, and acknowledge the jobs in the same
  transaction. When all has come to rest, every job has exactly one result. `python -m simulation --queue --seed N` reproduces a history.
- **defects found**: one line of the real code is changed, following the catalogue of real bugs. Every defect must be found.
- **correct histories for the checker**: histories of a log without faults, in which the checker must find nothing.
- **state machine steps**: steps of Hypothesis state machines, compared with a simple model.
- **property tests**: the tests of `tests/property`, with more examples than `make test` tries.
- **power-loss states**: the writes of a store are recorded, the disk is rebuilt as a power cut could have left it, and the store is opened.
- **damaged data directories**: a file of a stopped or killed directory is removed, truncated, replaced by an older copy, or has one bit flipped. The broker must
  refuse to start, or serve everything that was acknowledged.
- **fuzz inputs**: damaged input for every decoder and for recovery. Only the documented errors may be raised.
- **legal requests at the limits**: valid requests that use as much as the limits allow. None may block the event loop for long.
- **pipeline kills**: the broker, driver, JVM or a Python worker of a long exactly-once pipeline on Spark is killed while the offsets log of its checkpoint is
  ahead of the commits log. The broker restarts with or without Semel's extensions. The output is then compared with the input, record by record.
- **pipeline kills of a cluster**: the same pipeline over three brokers and PostgreSQL. One broker is killed, sometimes two or all, and comes back before or after
  its lease is over. After each kill, a reader compares the output with the pipeline's offsets: a batch is there completely or not at all.
- **kills of a broker and Java clients in transactions**: two static members of a group consume, transform and produce with Apache Kafka's Java client and
  transaction.version 2. Their consumers are woken at random times (`WakeupException`) and sometimes exceed `max.poll.interval.ms` within a transaction. The broker
  or a client is killed in a chosen phase of a transaction. The output is then compared with the input, record by record. The check is skipped, and its target
  missed, without Java or Maven.
- **protocol tests over a cluster**: the tests of the protocol, of clients and of the command line, with every embedded broker replaced by one of three over
  PostgreSQL (`pytest --over cluster`).
- **scenarios with a changing environment**: checkpoints are lost, restored and swapped, topics are deleted and recreated, groups are reset, ids are reused, and
  the broker is restored from a backup, between runs and in the middle of batches, with topics and Delta tables as output. Every run must count every record once
  or refuse with a message. `python -m verification.world --seed N` reproduces one.
- **scenarios with several sinks**: the same for declared pipelines, and for functions that write by hand, with up to four topics, tables and merged tables, and
  dead letters, in every output mode. Sinks are added, removed, renamed and moved. The driver dies at any point of a decision, or of its completion by the next
  start; a broker is killed, or another program changes a table, at such a point. Every record must be in all sinks or in none.
  `python -m verification.world --declared --seed N` reproduces one. On three brokers over PostgreSQL add `--over cluster`, on Apache Kafka `--over kafka`.
- **named scenarios**: tests on Spark, including the long ones, counted by the fault that they inject.
- **PostgreSQL failovers**: three brokers over a primary with a synchronous standby. The primary is killed, the standby is promoted, the old primary returns
  by itself beside it and waits for nobody, and half of the brokers' sessions are ended. Then the old one becomes the standby. Clients move money in transactions
  and copy records exactly-once meanwhile. Ends of partitions and positions of groups never go back.
- **kill -9, pauses, EndTxn faults, disk faults**: [chaos tests](chaos.md) with real processes, clients and files. Anomalies are lost, doubled, torn or aborted
  records; hangs are transactions that block a partition without a reason.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One row: the measured value, and the target."""

    name: str
    """The command, and what the row measures: ``make test: simulated histories``."""
    value: int
    target: int
    met: bool
    seeds: str
    duration: float
    commit: str


def commit_now() -> str:
    """Return the checked-out commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def merge(measured: Iterable[Result]) -> None:
    """Store these rows; keep stored rows that were not measured again."""
    rows = {row.name: row for row in (read() if FILE.exists() else [])}
    rows.update((row.name, row) for row in measured)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps([asdict(row) for row in rows.values()], indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows.values()), encoding="utf-8")


def page(rows: Iterable[Result]) -> str:
    """Format the rows as a page, with a table for each command."""
    tables: dict[str, list[Result]] = {word: [] for word in WORDS.values()}
    for row in rows:
        tables[row.name.partition(": ")[0]].append(row)
    return _HEAD + "".join(_table(word, rows) for word, rows in tables.items() if rows) + _FOOT


def _table(word: str, rows: list[Result]) -> str:
    lines = [
        f"| {row.name.partition(': ')[2]} | {row.value:,} | {row.target:,} | {'yes' if row.met else '**no**'} "
        f"| {row.seeds or '–'} | {row.duration:,.0f} |"
        for row in rows
    ]
    commits = ", ".join(sorted({row.commit for row in rows}))
    return _TABLE.format(word=word, rows="\n".join(lines), commits=commits)


def read() -> list[Result]:
    """Return the rows of the file, under their present names."""
    rows = [Result(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
    return list({(named := _renamed(row)).name: named for row in rows}.values())


def _renamed(row: Result) -> Result:
    word, _, name = row.name.partition(": ")
    for before, now in RENAMED.items():
        if name.startswith(before):
            return replace(row, name=f"{word}: {now}{name.removeprefix(before)}")
    return row
