"""The results of the suites: one file, and the page that is generated from it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from suites.catalogue import DIFFERENCES, ELSEWHERE, LEFT_OUT, SUITES
from suites.outcomes import FAILED, PASSED, SKIPPED, Case, Report

ROOT = Path(__file__).parent.parent
FILE = ROOT / "results" / "suites.json"
PAGE = ROOT / "docs" / "compatibility.md"
MARKS = ("<!-- suites begin -->", "<!-- suites end -->")


@dataclass(frozen=True, slots=True)
class Row:
    """One suite: the number of cases by outcome on both brokers, and the cases that differ."""

    suite: str
    what: str
    semel: dict[str, int]
    kafka: dict[str, int]
    commit: str
    differ: dict[str, str] = field(default_factory=dict)
    """Cases whose outcome on Semel differs from that on Apache Kafka: both outcomes, and the reason given."""
    failed_on_both: dict[str, str] = field(default_factory=dict)


def row(suite: str, semel: Report, kafka: Report, commit: str) -> Row:
    """Compare two reports."""
    differ, both = {}, {}
    for name in sorted({*semel, *kafka}):
        here, there = semel.get(name, Case("missing")), kafka.get(name, Case("missing"))
        if here.outcome != there.outcome:
            differ[name] = (
                f"{here.outcome} on Semel, {there.outcome} on Apache Kafka: {here.why or there.why}"
            )
        elif here.outcome == FAILED:
            both[name] = here.why
    return Row(suite, SUITES[suite].what, _count(semel), _count(kafka), commit, differ, both)


def _count(report: Report) -> dict[str, int]:
    counts = Counter(case.outcome for case in report.values())
    return {outcome: counts[outcome] for outcome in (PASSED, FAILED, SKIPPED)}


def score(report: Report) -> str:
    """Return how many cases passed, failed and were skipped."""
    return ", ".join(f"{count} {outcome}" for outcome, count in _count(report).items())


def reason(suite: str, case: str) -> str | None:
    """Return why a case differs, or fails on both; None if it is not explained."""
    known = DIFFERENCES.get(suite, {}) | ELSEWHERE.get(suite, {})
    return next((why for beginning, why in known.items() if case.startswith(beginning)), None)


def unexplained(found: Row) -> list[str]:
    """Return the cases without an explanation."""
    return [name for name in (*found.differ, *found.failed_on_both) if reason(found.suite, name) is None]


def merge(measured: Mapping[str, Row]) -> None:
    """Store these rows, keep older rows of other suites, and write the page."""
    rows = {each.suite: each for each in read()} | dict(measured)
    ordered = [rows[name] for name in SUITES if name in rows]
    FILE.write_text(json.dumps([asdict(each) for each in ordered], indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), ordered), encoding="utf-8")


def read() -> list[Row]:
    """Return the stored rows."""
    if not FILE.exists():
        return []
    return [Row(**each) for each in json.loads(FILE.read_text(encoding="utf-8"))]


def page(text: str, rows: list[Row]) -> str:
    """Return the page, with its generated part replaced."""
    head, _, rest = text.partition(MARKS[0])
    _, _, foot = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{generated(rows)}\n{MARKS[1]}{foot}"


def generated(rows: list[Row]) -> str:
    """Return the table of scores, the differences with their reasons, and what is left out."""
    lines = [
        "| suite | Semel: passed / failed / skipped | Apache Kafka: the same | cases that differ |",
        "| --- | --- | --- | --- |",
        *(
            f"| {each.suite} | {_score(each.semel)} | {_score(each.kafka)} | {_differing(each)} |"
            for each in rows
        ),
        "",
        f"Measured at commit {', '.join(sorted({each.commit for each in rows})) or '–'}.",
        "",
        *(f"- **{each.suite}**: {each.what}" for each in rows),
        "",
        "### Cases that differ, or pass on neither",
        "",
        *_explained(rows),
        "",
        "### Left out",
        "",
        "| suite | reason |",
        "| --- | --- |",
        *(f"| {name} | {why} |" for name, why in LEFT_OUT.items()),
    ]
    return "\n".join(lines)


def _score(counts: Mapping[str, int]) -> str:
    return " / ".join(str(counts[outcome]) for outcome in (PASSED, FAILED, SKIPPED))


def _differing(found: Row) -> str:
    if not found.differ:
        return "none"
    unknown = len([name for name in found.differ if reason(found.suite, name) is None])
    explained = f"{len(found.differ) - unknown} explained"
    return f"{explained}, **{unknown} not**" if unknown else explained


def _explained(rows: list[Row]) -> list[str]:
    lines = ["| suite | case | Semel / Apache Kafka | reason |", "| --- | --- | --- | --- |"]
    for each in rows:
        for name, said in each.differ.items():
            how = said.partition(": ")[0].replace(" on Semel, ", " / ").replace(" on Apache Kafka", "")
            lines.append(
                f"| {each.suite} | {name} | {how} | {reason(each.suite, name) or '**not explained**'} |"
            )
        for name in each.failed_on_both:
            lines.append(
                f"| {each.suite} | {name} | failed / failed | {reason(each.suite, name) or '**not explained**'} |"
            )
    return lines if len(lines) > 2 else ["None."]
