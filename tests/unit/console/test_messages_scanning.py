"""Reading ranges of a real broker: marks of transactions, scans in both orders, tails."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from support.clocks import later
from support.waiting import until

import semel
from semel.client import Admin, Client, Codec, ErrorCode, NewTopic, Producer, TransactionalProducer
from semel.client.consume.fetch import FetchUnderWay
from semel.console.clients import StoppableClient
from semel.console.messages import scanning, tailing
from semel.console.messages.asking import Ask, AskingError, moment, resolve
from semel.console.messages.filters import Filter
from semel.console.messages.limits import EXPORT, PAGE, ScanLimits
from semel.console.messages.reading import MarkedRecord, Reader
from semel.console.messages.scanning import Order, Reason, Scan
from semel.console.messages.tailing import tail
from semel.console.pages.messages import _page

MANY = ScanLimits(matches=10_000, records=1_000_000, read_bytes=1 << 30, seconds=60)


@pytest.fixture
def client() -> Iterator[Client]:
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as made:
        yield made


def identity(marked: MarkedRecord) -> MarkedRecord:
    return marked


def scan_of(
    client: Client, ask: Ask, limits: ScanLimits = MANY, topic: str = "t", stop: Any = None
) -> Scan[MarkedRecord]:
    asked = resolve(client, topic, ask)
    reader = Reader(client, topic, asked.bounds, committed=ask.committed, control=ask.control)
    return Scan(reader, asked.ranges, Filter(ask.q), identity, limits, ask.order, stop or threading.Event())


def continued(ask: Ask, scan: Scan[MarkedRecord]) -> Ask:
    rest = ask.continued(scan.left)
    assert rest is not None
    return rest


def found(client: Client, **query: str) -> list[tuple[int, bytes | None, str]]:
    scan = scan_of(client, Ask.of(query))
    return [(m.offset, m.record.value, m.mark.value) for rows in scan.rounds() for m in rows]


def write_transactions(client: Client) -> list[TransactionalProducer]:
    """One partition: plain, committed, aborted, open, then committed and aborted behind the open one."""
    Admin(client).topics.create(NewTopic("t", 1))
    with Producer(client) as producer:
        producer.send("t", b"plain")
    kept = []
    for name, value, end in (
        ("a", b"committed", "commit"),
        ("b", b"aborted", "abort"),
        ("c", b"open", ""),
        ("d", b"committed behind", "commit"),
        ("e", b"aborted behind", "abort"),
        ("f", b"open too", ""),
    ):
        writer = TransactionalProducer(client, name)
        writer.init()
        writer.begin()
        writer.send("t", value)
        writer.flush()
        if end:
            getattr(writer, end)()
        kept.append(writer)
    with Producer(client) as producer:
        producer.send("t", b"plain behind")
    return kept


MARKED = [
    (b"plain", "plain"),
    (b"committed", "committed"),
    (b"aborted", "aborted"),
    (b"open", "open"),
    (b"committed behind", "committed"),
    (b"aborted behind", "aborted"),
    (b"open too", "open"),
    (b"plain behind", "plain"),
]


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_every_record_is_marked(client: Client, order: str) -> None:
    write_transactions(client)
    rows = [(value, mark) for _, value, mark in found(client, isolation="uncommitted", order=order)]
    assert rows == (MARKED if order == "oldest" else MARKED[::-1])
    assert [(value, mark) for _, value, mark in found(client, order="oldest")] == MARKED[:2]
    assert [row[1] for row in found(client, isolation="uncommitted", q="is:aborted")] == [
        b"aborted behind",
        b"aborted",
    ]


def test_a_record_in_the_middle_is_marked_by_what_follows(client: Client) -> None:
    """The reader starts behind the last stable offset, where no broker lists aborted transactions."""
    write_transactions(client)
    everything = found(client, isolation="uncommitted", order="oldest")
    for offset, value, mark in everything:
        ask = {"isolation": "uncommitted", "from": str(offset), "to": str(offset + 1)}
        assert found(client, **ask) == [(offset, value, mark)]


def test_markers_are_shown_on_request(client: Client) -> None:
    write_transactions(client)
    ask = Ask.of({"isolation": "uncommitted", "control": "1", "order": "oldest"})
    notes = [m.note for rows in scan_of(client, ask).rounds() for m in rows if m.mark == "control"]
    assert [note.split(",")[0] for note in notes] == [
        "commit marker",
        "abort marker",
        "commit marker",
        "abort marker",
    ]


def test_hidden_records_are_counted(client: Client) -> None:
    write_transactions(client)
    scan = scan_of(client, Ask.of({}))
    assert sum(len(rows) for rows in scan.rounds()) == 2
    assert scan.progress.hidden == 1
    assert scan.progress.scanned == scan.progress.total


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("matches", [1, 3, 1000])
def test_hidden_records_are_counted_once(client: Client, order: str, matches: int) -> None:
    """A limit cuts the scan in the middle of what was fetched, which is then read again."""
    Admin(client).topics.create(NewTopic("t", 2))
    writer = TransactionalProducer(client, "w")
    writer.init()
    for number in range(20):
        writer.begin()
        for _ in range(3):
            writer.send("t", b"value", partition=number % 2)
        writer.flush()
        (writer.abort if number % 4 < 2 else writer.commit)()
    for records in (1, 7, 10_000):
        ask, hidden, shown = Ask.of({"order": order}), 0, 0
        while True:
            scan = scan_of(client, ask, ScanLimits(matches, records, 1 << 30, 60))
            shown += sum(len(rows) for rows in scan.rounds())
            hidden += scan.progress.hidden
            if not any(each.size for each in scan.left.values()):
                break
            ask = continued(ask, scan)
        assert (shown, hidden) == (30, 30)


def write_many(client: Client, count: int = 1000, partitions: int = 3) -> None:
    Admin(client).topics.create(NewTopic("t", partitions))
    with Producer(client) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=number % partitions, timestamp_ms=10_000 + number)


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_pages_follow_each_other_without_a_gap(client: Client, order: str) -> None:
    write_many(client)
    ask, seen = Ask.of({"order": order}), []
    for _ in range(100):
        scan = scan_of(client, ask, ScanLimits(37, 10_000, 1 << 30, 60))
        seen += [int(m.record.value or b"") for rows in scan.rounds() for m in rows]
        if scan.reason is Reason.END:
            break
        assert scan.reason is Reason.MATCHES
        ask = Ask.of(dict(parse_qsl(continued(ask, scan).query())))
    assert sorted(seen) == list(range(1000))
    assert seen == sorted(seen, reverse=order == "newest")


@pytest.fixture(scope="module")
def client_of_many() -> Iterator[Client]:
    """Of a broker whose topic has 30,000 records."""
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as made:
        write_many(made, 30_000, 1)
        yield made


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ScanLimits(10_000, 600, 1 << 30, 60), Reason.RECORDS),
        (ScanLimits(10_000, 100_000, 1, 60), Reason.BYTES),
        (ScanLimits(10_000, 100_000, 1 << 30, 0.0), Reason.TIME),
    ],
)
def test_a_limit_says_where_it_stopped(
    client_of_many: Client, order: Order, limits: ScanLimits, reason: Reason
) -> None:
    ask = Ask.of({"order": order.value, "q": "nothing"})
    scan = scan_of(client_of_many, ask, limits)
    assert not any(scan.rounds())
    assert scan.reason is reason
    assert scan.left[0].size == 30_000 - scan.progress.scanned > 0
    rest = scan_of(client_of_many, continued(ask, scan))
    assert not any(rest.rounds())
    assert rest.reason is Reason.END
    assert rest.progress.total == scan.left[0].size


def test_a_search_goes_back_to_the_first_record(client_of_many: Client) -> None:
    scan = scan_of(client_of_many, Ask.of({"q": "value:/^17$/"}), EXPORT)
    assert [m.record.value for rows in scan.rounds() for m in rows] == [b"17"]
    assert scan.progress.scanned == 30_000


def test_large_records_shrink_the_window(client: Client) -> None:
    Admin(client).topics.create(NewTopic("t", 1, configs={"max.message.bytes": "20000000"}))
    with Producer(client) as producer:
        for number in range(12):
            producer.send("t", bytes([number]) * 5_000_000)
            producer.flush()
    scan = scan_of(client, Ask.of({}), replace(PAGE, seconds=60.0))
    seen = [m.record.value[0] for rows in scan.rounds() for m in rows if m.record.value]
    assert seen == list(range(11, 11 - len(seen), -1))
    assert scan.reason is Reason.BYTES
    assert len(seen) >= 3


def test_a_bomb_hides_nothing_but_itself(client: Client) -> None:
    Admin(client).topics.create(NewTopic("t", 1, configs={"semel.validate.records": "none"}))
    with Producer(client) as producer:
        producer.send("t", b"before")
    with Producer(client, codec=Codec.GZIP, batch_bytes=100 << 20, buffer_bytes=200 << 20) as producer:
        producer.send("t", bytes(48 << 20))
        producer.send("t", b"in the same batch")
    with Producer(client) as producer:
        producer.send("t", b"after")
    for order in Order:
        scan = scan_of(client, Ask.of({"order": order.value}))
        rows = [m for rows in scan.rounds() for m in rows]
        assert {m.record.value for m in rows if not m.is_unreadable} == {b"before", b"after"}
        assert [m.offset for m in rows if m.is_unreadable] == [1]
        assert "more than" in next(m.note for m in rows if m.is_unreadable)
        assert one_by_one(client, order) == {Order.OLDEST: [0, 1, 3], Order.NEWEST: [3, 1, 0]}[order]


def one_by_one(client: Client, order: Order) -> list[int]:
    """The offsets of pages with one record each."""
    ask, offsets = Ask.of({"order": order.value, "limit": "1"}), []
    for _ in range(10):
        scan = scan_of(client, ask, ScanLimits(1, 1000, 1 << 30, 60))
        offsets += [m.offset for rows in scan.rounds() for m in rows]
        if not any(each.size for each in scan.left.values()):
            return offsets
        ask = continued(ask, scan)
    raise AssertionError(f"the pages do not end: {offsets}")


def test_jump_to_an_offset_or_a_time(client: Client) -> None:
    write_many(client, 100, 1)
    assert found(client, **{"from": "90"})[0][0] == 90
    assert [row[0] for row in found(client, **{"from": "90", "to": "92"})] == [90, 91]
    at = "1970-01-01T00:00:10.050Z"
    assert found(client, **{"from": at})[0][0] == 50
    assert found(client, to=at)[0][0] == 49
    assert found(client, **{"from": "-1h"}) == []
    assert moment("-15m", 1_000_000) == 100_000
    for wrong in ({"from": "yesterday"}, {"partition": "7"}, {"partition": "x"}, {"left": "x"}):
        with pytest.raises(AskingError):
            found(client, **wrong)
    for wrong in ({"limit": "0"}, {"order": "up"}, {"view": "x"}, {"isolation": "none"}):
        with pytest.raises(AskingError):
            Ask.of(wrong)


def test_the_address_holds_the_state() -> None:
    query = {"q": "key:a b", "partition": "0-2", "from": "-1h", "order": "newest", "isolation": "uncommitted"}
    ask = Ask.of({**query, "control": "1", "view": "hex", "limit": "10"})
    assert ask.query() == (
        "q=key:a+b&partition=0-2&from=-1h&order=newest&isolation=uncommitted&control=1&view=hex&limit=10"
    )
    assert Ask.of({}).query() == ""


def test_a_scan_that_is_stopped_ends(client: Client) -> None:
    write_many(client, 1000, 1)
    stop = threading.Event()
    stop.set()
    scan = scan_of(client, Ask.of({}), stop=stop)
    assert list(scan.rounds()) == []
    assert scan.reason is Reason.STOPPED


class Pauses(threading.Event):
    """Stops a tail at its third pause."""

    pauses = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses += 1
        if self.pauses == 3:
            self.set()
        return self.is_set()


def test_a_tail_pauses_while_a_leader_moves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker answers with an error at once; the other partition has nothing new."""
    Admin(client).topics.create(NewTopic("t", 2))
    asked = resolve(client, "t", Ask.of({}))
    reader = Reader(client, "t", asked.bounds, committed=True)
    answers, fetch = [], FetchUnderWay.wait

    def moved(self: FetchUnderWay) -> Any:
        found = fetch(self)
        for (_, partition), data in found:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if partition else ErrorCode.NONE
        answers.append(found)
        assert len(answers) < 10
        return found

    monkeypatch.setattr(FetchUnderWay, "wait", moved)
    monkeypatch.setattr(tailing, "WAIT", replace(tailing.WAIT, max_wait_ms=0))
    assert list(tail(reader, {0: 0, 1: 0}, Filter(""), identity, Pauses())) == []
    assert len(answers) == 3


def test_a_tail_marks_records_when_their_transaction_ends(client: Client) -> None:
    Admin(client).topics.create(NewTopic("t", 1))
    asked = resolve(client, "t", Ask.of({"isolation": "uncommitted"}))
    reader = Reader(client, "t", asked.bounds, committed=False)
    stop, rounds = threading.Event(), []

    def follow() -> None:
        for made in tail(reader, {0: 0}, Filter(""), identity, stop):
            rounds.append(made)

    with Client(client._bootstrap[0][0] + ":" + str(client._bootstrap[0][1])) as other:
        thread = threading.Thread(target=follow)
        thread.start()
        writer = TransactionalProducer(other, "w")
        writer.init()
        writer.begin()
        writer.send("t", b"x")
        writer.flush()
        until(lambda: any(made.rows for made in rounds))
        assert [m.mark.value for made in rounds for m in made.rows] == ["open"]
        writer.abort()
        until(lambda: any(made.outcomes for made in rounds))
        outcome = rounds[-1].outcomes[0]
        assert (outcome["partition"], outcome["mark"], outcome["before"]) == (0, "aborted", 1)
        stop.set()
        thread.join()


@pytest.mark.parametrize("order", list(Order))
def test_a_scan_without_time_gets_on_and_comes_to_its_end(client: Client, order: Order) -> None:
    """The machine may stall for longer than a page may take, before its first request."""
    write_many(client, 5, 1)
    ask, seen = Ask.of({"order": order.value}), list[int]()
    for _ in range(5):
        scan = scan_of(client, ask, ScanLimits(100, 1000, 1 << 30, 0.0))
        made = [m.offset for rows in scan.rounds() for m in rows]
        assert made
        seen += made
        if not any(each.size for each in scan.left.values()):
            break
        assert scan.reason is Reason.TIME
        ask = continued(ask, scan)
    assert seen == (list(range(5)) if order is Order.OLDEST else list(range(4, -1, -1)))


def test_a_scan_without_time_waits_for_no_leader(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    write_many(client, 5, 1)
    fetches = []

    def fetch(*_: Any) -> list[Any]:
        fetches.append(1)
        return []

    monkeypatch.setattr(Reader, "fetch", fetch)
    for number, order in enumerate(Order, 1):
        scan = scan_of(client, Ask.of({"order": order.value}), ScanLimits(100, 1000, 1 << 30, 0.0))
        assert not any(scan.rounds())
        assert (scan.reason, scan.progress.scanned, len(fetches)) == (Reason.TIME, 0, number)


class SlowFilter(Filter):
    """Takes a while for every record, as twenty paths into a large value do."""

    def __init__(self, clock: later) -> None:
        super().__init__()
        self.clock = clock
        self.looks = 0

    def matches(self, marked: MarkedRecord) -> bool:
        self.looks += 1
        self.clock.sleep(5)
        return super().matches(marked)


@pytest.mark.parametrize("order", list(Order))
def test_expensive_records_stop_in_time_and_go_on(
    client: Client, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "time", clock := later())
    Admin(client).topics.create(NewTopic("t", 1))
    with Producer(client) as producer:
        for number in range(12):
            producer.send("t", b"small", key=b"%d" % number)
    ask, seen = Ask.of({"order": order.value}), list[int]()
    limits = ScanLimits(100, 1000, 1 << 30, 20)
    while True:
        scan = scan_of(client, ask, limits)
        scan._direction._wanted = slow = SlowFilter(clock)
        made = [m.offset for rows in scan.rounds() for m in rows]
        assert slow.looks <= 20 / 5 + 2  # Its time, and one record for the scan to get on.
        assert made  # A scan that is continued comes to its end.
        seen += made
        if not any(each.size for each in scan.left.values()):
            break
        assert scan.reason is Reason.TIME
        ask = continued(ask, scan)
    assert seen == (list(range(12)) if order is Order.OLDEST else list(range(11, -1, -1)))


@pytest.mark.parametrize("order", list(Order))
def test_batches_without_a_match_are_work_too(client: Client, order: Order) -> None:
    """No record of them is yielded, yet each is unpacked and searched."""
    Admin(client).topics.create(NewTopic("t", 1))
    for _ in range(20):
        with Producer(client, codec=Codec.ZSTD) as producer:
            producer.send("t", bytes(900_000))
    stop, looks = threading.Event(), 0

    def slow(data: bytes) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            stop.set()
        return False

    ask = Ask.of({"order": order.value})
    scan = scan_of(client, ask, MANY, stop=stop)
    scan._reader._may_match = slow
    assert [m for rows in scan.rounds() for m in rows] == []
    assert (looks, scan.reason) == (3, Reason.STOPPED)
    scan = scan_of(client, ask, ScanLimits(10, 1000, 5 << 20, 60))
    scan._reader._may_match = lambda data: False
    list(scan.rounds())
    assert scan.reason is Reason.BYTES
    assert scan.progress.read_bytes < 8 << 20
    assert 0 < scan.progress.scanned < 20


def test_a_page_stops_with_its_browser(client: Client) -> None:
    """It has one piece of several batches in hand, so the client has no request to refuse."""
    Admin(client).topics.create(NewTopic("t", 1))
    for _ in range(5):
        with Producer(client) as producer:
            producer.send("t", b"x")

    class Leaving(Filter):
        def matches(self, marked: MarkedRecord) -> bool:
            stop.set()
            return super().matches(marked)

    stop = threading.Event()
    node = client.describe().nodes[0]
    with StoppableClient(f"{node.host}:{node.port}") as stoppable:
        stoppable.stop = stop
        page = _page(stoppable, "t", Ask.of({"order": "oldest"}), Leaving(), PAGE, None)
    assert (page["scan"]["reason"], len(page["messages"])) == ("stopped", 1)
