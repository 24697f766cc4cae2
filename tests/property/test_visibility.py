"""Both visibilities, on a real broker: the same history, and each shows it in its own order.

Producers of both generations write to a topic of each visibility in the same transactions, among plain
records. After every step, what readers get is what the model says: `marker` topics show the log up to the
oldest open transaction, without what was aborted; `journal` topics show commits in the order of commits, and
plain records where they were written.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.raw import RawClient, batch
from support.clients.raw_log import READ_UNCOMMITTED, Log
from support.clients.raw_transactions import RawProducer, make_topic, new_name
from support.examples import examples

import semel

PRODUCERS = 3
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, PRODUCERS - 1), st.integers(1, 3)),
    st.tuples(st.just("write"), st.integers(0, PRODUCERS - 1), st.integers(1, 3)),
    st.tuples(st.just("plain"), st.just(0), st.integers(1, 2)),
    st.tuples(st.just("commit"), st.integers(0, PRODUCERS - 1), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, PRODUCERS - 1), st.just(0)),
    st.tuples(st.just("replace"), st.integers(0, PRODUCERS - 1), st.just(0)),
)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with semel.embedded() as broker:
        yield broker.bootstrap_servers


class History:
    """What was answered, and what follows from it for a reader."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, int | None]] = []
        """In the order of writing, with the transaction."""
        self.journal: list[bytes] = []
        self.outcomes: dict[int, bool] = {}
        self.open: dict[int, int] = {}
        """The transaction that each producer has open."""
        self._transactions = 0

    def wrote(self, producer: int | None, values: list[bytes]) -> None:
        if producer is None:
            self.log += [(value, None) for value in values]
            self.journal += values
            return
        if producer not in self.open:
            self._transactions += 1
            self.open[producer] = self._transactions
        self.log += [(value, self.open[producer]) for value in values]

    def ended(self, producer: int, commit: bool) -> None:
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            self.outcomes[transaction] = commit
            if commit:
                self.journal += [value for value, of in self.log if of == transaction]

    def visible(self) -> list[bytes]:
        values: list[bytes] = []
        for value, transaction in self.log:
            if transaction is not None and transaction not in self.outcomes:
                break
            if transaction is None or self.outcomes[transaction]:
                values.append(value)
        return values


class Run:
    """One history on a broker."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.marker = Log(client, make_topic(client))
        self.journal = Log(client, make_topic(client, semel_visibility="journal"))
        self.producers = [
            RawProducer(client, new_name("id"), generation=1 + number % 2) for number in range(PRODUCERS)
        ]
        self.history = History()
        self.values = 0

    def step(self, what: str, at: int, count: int) -> None:
        producer = self.producers[at]
        values = [b"%d" % (self.values + number) for number in range(count)]
        self.values += count
        if what == "write":
            producer.write(self.marker.topic, *values)
            assert producer.write(self.journal.topic, *values) == -1
            self.history.wrote(at, values)
        elif what == "plain":
            for value in values:
                for log in (self.marker, self.journal):
                    assert self.client.produce(log.topic, batch(value=value)).error_code == 0
            self.history.wrote(None, values)
        elif what == "replace":
            self.producers[at] = RawProducer(
                self.client, producer.transactional_id, generation=producer.generation
            )
            self.history.ended(at, commit=False)
        elif at in self.history.open:
            if what == "commit":
                producer.commit()
            else:
                producer.abort()
            self.history.ended(at, commit=what == "commit")

    def check(self) -> None:
        assert self.marker.values() == self.history.visible()
        assert self.journal.values() == self.history.journal
        assert self.journal.values(isolation=READ_UNCOMMITTED) == self.history.journal, (
            "nothing else is there"
        )
        assert self.journal.end == self.journal.stable == len(self.history.journal), "no gaps, nobody waits"


@examples(15)
@given(history=st.lists(steps, min_size=5, max_size=25))
def test_each_visibility_shows_the_history_in_its_own_order(
    bootstrap: str, history: list[tuple[str, int, int]]
) -> None:
    with RawClient(bootstrap) as client:
        run = Run(client)
        for what, at, count in history:
            run.step(what, at, count)
            run.check()
        for at, producer in enumerate(run.producers):
            if at in run.history.open:
                producer.commit()
                run.history.ended(at, commit=True)
        run.check()
        assert sorted(run.history.visible()) == sorted(run.history.journal), "in the end both have the same"
