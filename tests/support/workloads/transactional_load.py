"""Transactional load, and the proof that each of its transactions counts whole or not at all.

The workers, and the content of a record, are in ``transactional_workers``.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.clients.raw import RawClient
from support.clients.raw_transactions import Log
from support.waiting import until
from support.workloads.transactional_workers import (
    PARTITIONS,
    RECORDS,
    WAIT_SECONDS,
    Copier,
    LibrdkafkaWriter,
    Noted,
    OwnWriter,
    RawWriter,
    RawWriter2,
    Worker,
    Writer,
)

MESSAGE_TIMEOUT_MS = 60_000
"""When clients give up messages; the default of librdkafka's transactional producer, and of ours."""


class TransactionalLoad:
    """Writers and a copier at work."""

    KINDS: tuple[type[Writer], ...] = (LibrdkafkaWriter, OwnWriter, RawWriter, RawWriter2)

    def __init__(
        self, bootstrap: str, source: str, target: str, writers: int, message_timeout_ms: int
    ) -> None:
        self.bootstrap = bootstrap
        self.source = source
        self.target = target
        self._progress = threading.Semaphore(0)
        self.writers = [
            self.KINDS[number % len(self.KINDS)](
                number, bootstrap, source, self._progress, message_timeout_ms
            )
            for number in range(writers)
        ]
        self.copier = Copier(bootstrap, source, target, self._progress, message_timeout_ms)

    @property
    def workers(self) -> list[Worker]:
        return [*self.writers, self.copier]

    def wait_for(self, steps: int) -> None:
        """Wait until this many more requests were answered, of any worker."""
        for _ in range(steps):
            is_moving = self._progress.acquire(timeout=WAIT_SECONDS)
            assert is_moving, f"nothing moved for a minute: {self.failures()}"
        self._assert_nobody_failed()

    def wait_for_everyone(self) -> None:
        """Wait until each worker has ended another transaction: some clients pause for long after a kill."""
        before = {each: each.ended for each in self.workers}

        def who_waits() -> list[str]:
            return [each.name for each in self.workers if each.ended == before[each]]

        until(lambda: not who_waits() or self.failures(), 2 * WAIT_SECONDS, "a transaction of everyone")
        self._assert_nobody_failed()

    @property
    def given_up(self) -> int:
        """Transactions that a client could not end as intended."""
        return sum(each.given_up for each in self.workers)

    def failures(self) -> list[str]:
        return [f"{each.name}: {each.failure}" for each in self.workers if each.failure]

    def _assert_nobody_failed(self) -> None:
        failures = self.failures()
        assert not failures, "\n".join(failures)

    def stop(self) -> None:
        """Let every writer finish its transaction, and the copier copy the rest."""
        for writer in self.writers:
            writer.stopping.set()
        for writer in self.writers:
            writer.join()
        total = RECORDS * PARTITIONS * sum(len(writer.committed) for writer in self.writers)
        with suppress(AssertionError):
            until(lambda: self.copier.copied >= total or not self.copier.is_alive(), WAIT_SECONDS)
        self.copier.stopping.set()
        self.copier.join()

    def report(self) -> str:
        """Summarise the work in one line."""
        committed = sum(len(writer.committed) for writer in self.writers)
        aborted = sum(len(writer.aborted) for writer in self.writers)
        return (
            f"{committed} transactions committed and {aborted} aborted by {len(self.writers)} writers, "
            f"{self.copier.copied} records copied in {self.copier.ended}; given up by a client: "
            f"{self.given_up}, instances of it replaced: {sum(each.replaced for each in self.workers)}"
        )

    def check(self) -> None:
        """Check that nothing is lost, doubled, torn, left open, or read although aborted."""
        problems = self.failures() + self.problems()
        assert not problems, "\n".join(problems)

    def problems(self) -> list[str]:
        """Return the errors in the log. May be called after a failure too."""
        with RawClient(self.bootstrap) as client:
            logs = [Log(client, self.source, index) for index in range(PARTITIONS)]
            copies = [Log(client, self.target, index) for index in range(PARTITIONS)]
            try:
                # A transaction that a failed worker left open is ended by its timeout.
                until(lambda: all(log.is_settled for log in logs + copies), 2 * WAIT_SECONDS)
            except AssertionError:
                return ["left open: a transaction has not ended, so nothing behind it can be read"]
            found = [[Noted.decode(value) for value in log.values()] for log in logs]
            copied = [[Noted.decode(value) for value in log.values()] for log in copies]
        problems = self._problems_of_writers(found)
        for partition, notes in enumerate(copied):
            # A copier that failed has copied a prefix.
            expected = found[partition][: len(notes)] if self.copier.failure else found[partition]
            problems += _differences(f"copy, partition {partition}", notes, expected)
        if not all(writer.committed and writer.aborted for writer in self.writers):
            problems.append("somebody did nothing")
        return problems

    def _problems_of_writers(self, found: list[list[Noted]]) -> list[str]:
        problems = []
        for partition, notes in enumerate(found):
            aborted = [note for note in notes if not note.is_commit]
            if aborted:
                problems.append(f"aborted and read: {aborted[:5]}")
            for writer in self.writers:
                # Of each transaction all records, once and in order: so no two partitions can disagree.
                expected = [
                    Noted(writer.number, number, True, PARTITIONS, partition, index)
                    for number in writer.committed + _in_doubt(writer, found)
                    for index in range(RECORDS)
                ]
                what = f"{writer.name}, partition {partition}"
                problems += _differences(
                    what, [note for note in notes if note.writer == writer.number], expected
                )
        return problems


def _in_doubt(writer: Writer, found: list[list[Noted]]) -> list[int]:
    """Return the transaction at which a writer failed, if any of it counts: then all of it must."""
    at_hand = (writer.number, writer.doing)
    counts = any((note.writer, note.number) == at_hand for notes in found for note in notes)
    return [writer.doing] if writer.failure and counts else []


def _differences(what: str, found: list[Noted], expected: list[Noted]) -> list[str]:
    if found == expected:
        return []
    lost, extra = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    return [f"{what}: lost: {list(lost)[:5]}; doubled or torn: {list(extra)[:5]}; or out of order"]


@contextmanager
def transactional_load(
    bootstrap: str,
    source: str,
    target: str,
    writers: int = 8,
    message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
) -> Iterator[TransactionalLoad]:
    """Run load until the end of the block. If the block fails, the error also describes the log."""
    load = TransactionalLoad(bootstrap, source, target, writers, message_timeout_ms)
    for worker in load.workers:
        worker.start()
    try:
        yield load
    except Exception as error:
        load.stop()
        error.add_note(load.report())
        error.add_note(_verdict(load))
        raise
    finally:
        load.stop()


def _verdict(load: TransactionalLoad) -> str:
    try:
        problems = load.problems()
    except (OSError, AssertionError) as error:
        return f"the log cannot be read: {error!r}"
    return "\n".join(problems) or "nothing is lost, doubled or torn, and nothing aborted is read"
