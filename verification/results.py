"""What was measured, as one list in one file, and the page that people read."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = ROOT / "results" / "verification.json"
PAGE = ROOT / "docs" / "verification.md"

WORDS = {"test": "make test", "verify": "make verify", "long": "make verify-long"}
"""What each size is called by those who run it. A row's name begins with it."""

_HEAD = """# Verification

Written by `make test`, `make verify` and `make verify-long`, each its own rows; do not edit. What each row means
is in [the checker's page](checker.md) and below.
"""

_TABLE = """
## {word}

| what | found | target | met | seeds | seconds |
| --- | --- | --- | --- | --- | --- |
{rows}

Measured at commit {commits}.
"""

_FOOT = """
## What the rows mean

- **simulated histories**: the real rules, commit loop, reads and handlers under virtual time, with a disk that
  loses what was not flushed, a network that loses, holds and repeats, clients that pause and die. One seed is one
  history; `python -m simulation --seed N` shows it again. The checker looks for every anomaly of its catalogue.
- **defects found**: one line of the real code made wrong, from the catalogue of real bugs. Each must be found.
- **correct histories for the checker**: histories of a log without a fault. The checker must find nothing in them.
- **state machine rules**: steps of hypothesis beside an obvious model.
- **power-loss states**: a store is recorded, and the disk is rebuilt as a power cut could have left it; then it
  is opened.
- **damaged data directories**: a file of a stopped or killed directory is removed, cut off, put back from an older
  copy, or has one bit flipped. The start refuses, or everything acknowledged is served.
- **fuzz inputs**: damaged bytes for every decoder and for recovery. Only the typed errors may come out.
- **kills of a pipeline**: broker, driver, JVM or Python worker of one long exactly-once pipeline on Spark, while the offsets log
  of its checkpoint is ahead of the commits log; the broker comes back with Semel's extensions or without. Then its
  output is compared with its input, record by record.
- **scenarios in which the world of a pipeline changes**: checkpoints are lost, restored and swapped, topics are deleted and
  made again, groups are reset, ids are reused, the broker is restored from a backup, between runs and in the middle of batches,
  with topics and Delta tables as output. Every run counts every record once or refuses with words.
  `python -m verification.world --seed N` shows one again.
- **scenarios by name**: tests on Spark, the long ones too, counted by what happens in them.
- **kill -9, pauses, EndTxn faults, disk faults**: real processes, real clients, real files.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One row: what was found, and what should have been."""

    name: str
    """Whose row it is, and what it tells: ``make test: simulated histories``."""
    value: int
    target: int
    met: bool
    seeds: str
    duration: float
    commit: str


def commit_now() -> str:
    """The commit that is measured."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def merge(measured: Iterable[Result]) -> None:
    """Keep these, and of what was kept before the rows that were not measured anew."""
    rows = {row.name: row for row in (read() if FILE.exists() else [])}
    rows.update((row.name, row) for row in measured)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps([asdict(row) for row in rows.values()], indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows.values()), encoding="utf-8")


def page(rows: Iterable[Result]) -> str:
    """The rows as a page, a table for each of those who wrote them."""
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
    """What was kept."""
    return [Result(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
