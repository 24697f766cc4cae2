"""``python -m suites``: run the suites against both brokers, and write docs/compatibility.md."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.brokers.process import BrokerProcess
from support.waiting import until

from peers.brokers import COMMON, serves
from peers.kafka import KafkaProcess
from peers.programs import CannotBuild, fetch_jars, needed
from suites import results
from suites.catalogue import LEFT_OUT, SUITES
from suites.outcomes import FAILED, Report, Suite, Target
from verification.results import commit_now

BROKERS = ("semel", "kafka")
START_SECONDS = 240.0
"""A busy machine may take this long."""
SETTINGS = {**COMMON, "auto.create.topics.enable": "true"}
"""Suites rely on topics that are created when they are first requested."""
ONLY_KAFKA = {
    "node.id": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""Suites expect broker ids to begin with 0, and the first start need not create a hundred partitions."""


def main() -> int:
    """Run the command line; zero if every difference is explained."""
    parser = argparse.ArgumentParser(prog="python -m suites", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(SUITES), help="some suites; others keep their rows")
    parser.add_argument("--on", choices=BROKERS, help="one broker only, for a look; nothing is written")
    options = parser.parse_args()
    try:
        needed("java")
        class_path = (
            f"{fetch_jars(Path(__file__).parent / 'pom.xml', Path(__file__).parent / 'build' / 'jars')}/*"
        )
    except CannotBuild as error:
        print(f"skipped all: Apache Kafka cannot be fetched: {error}")
        return 1
    for name, why in LEFT_OUT.items():
        print(f"left out: {name}: {why}")
    good = True
    for name in options.only or SUITES:
        reports = _run(name, class_path, [options.on] if options.on else BROKERS)
        if reports is None:
            continue
        good = good and bool(reports)
        if len(reports) == len(BROKERS):
            row = results.row(name, reports["semel"], reports["kafka"], commit_now())
            results.merge({name: row})
            for case in results.unexplained(row):
                print(f"{name}: NOT EXPLAINED: {case}: {(row.differ | row.failed_on_both)[case]}", flush=True)
                good = False
    return 0 if good else 1


def _run(name: str, class_path: str, brokers: list[str] | tuple[str, ...]) -> Mapping[str, Report] | None:
    """Run one suite; return None if it cannot be built here, and nothing if a broker did not start."""
    reports: dict[str, Report] = {}
    suite = SUITES[name]
    for broker in brokers:
        started = time.monotonic()
        try:
            with _target(broker, class_path, suite) as target:
                report = suite.run(target, suite.seconds)
        except CannotBuild as error:
            print(f"{name}: skipped: {error}", flush=True)
            return None
        except AssertionError as error:
            print(f"{name}: NOT RUN on {broker}: {error}", flush=True)
            return {}
        reports[broker] = report
        score = results.score(report)
        print(f"{name} on {broker}: {score} in {time.monotonic() - started:.0f} s", flush=True)
        for case, (outcome, why) in report.items():
            if outcome == FAILED:
                print(f"  failed: {case}: {why}", flush=True)
    return reports


@contextmanager
def _target(broker: str, class_path: str, suite: Suite) -> Iterator[Target]:
    """Run a fresh broker, in a directory that is removed with it."""
    with tempfile.TemporaryDirectory(prefix="semel-suites-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        if broker == "semel":
            given = {**SETTINGS, **suite.settings, **suite.only_semel}
            options = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
            with BrokerProcess(directory / "data", *options) as process:
                yield Target(broker, process.bootstrap, directory, class_path)
        else:
            given = {**SETTINGS, **ONLY_KAFKA, **suite.settings, **suite.only_kafka}
            with KafkaProcess(class_path, directory / "kafka", given) as kafka:
                until(lambda: serves(kafka), START_SECONDS, "the start of Apache Kafka")
                yield Target(broker, kafka.bootstrap, directory, class_path)


if __name__ == "__main__":
    sys.exit(main())
