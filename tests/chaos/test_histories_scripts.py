"""The ten scripts of a bad network, E1 to E10: what happens is told step by step, and not left to chance.

Each of them ends as every run does: what is open is ended, everything is read once more, and the checker
looks at what all of them wrote down. More of E1 to E4 is in ``tests/wire/test_delayed_end.py``.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from support.clients.raw import RawClient, produce_request
from support.clients.raw import batch as raw_batch
from support.clients.raw_groups import ClassicMember, join_request
from support.clients.raw_log import Log, deliver
from support.clients.raw_transactions import RawProducer, committed, describe, new_name, produce_in
from support.faults.proxy import Act, Proxy
from support.waiting import until
from support.workloads.chaos_run import Run, hanging
from support.workloads.clients import Sent
from support.workloads.running import Producing, Workload

import semel
from semel.check import Claim, Process, check, read_history
from semel.client import Client
from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header, encode_request
from semel.wire.messages import APIS, transactions
from semel.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from semel.wire.schema import Request

PRODUCE, FETCH, INIT, END, OFFSETS = 0, 1, 22, 26, 28
KINDS = ["own", "own-1", "librdkafka"]


class Script(Workload):
    """One topic with two partitions, and whoever the script names."""

    def __init__(self, run: Run, bootstrap: str, visibility: str = "marker") -> None:
        super().__init__(run.place(bootstrap), {new_name("script"): 2}, visibility)
        (self.topic,) = self.topics
        self.ids: list[str] = []

    @property
    def transactional_ids(self) -> list[str]:
        return self.ids

    def new_id(self) -> str:
        self.ids.append(new_name("id"))
        return self.ids[-1]

    def begun(self, process: Process, client: RawClient, value: str) -> tuple[RawProducer, str]:
        """A new producer and its first transaction, which has written this value to the first partition."""
        name = self.new_id()
        with process.init(name):
            producer = RawProducer(client, name)
        transaction = process.begin(name)
        with process.produce(self.topic, 0, [value], transaction) as told:
            told.offset = producer.write(self.topic, value.encode())
        return producer, transaction

    def records(self, value: str) -> list[Sent]:
        return [Sent(self.topic, index, value) for index in range(2)]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with semel.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("script", 0, tmp_path)


@pytest.fixture
def script(run: Run, bootstrap: str) -> Script:
    made = Script(run, bootstrap)
    run.create(made)
    return made


@pytest.fixture
def judged(run: Run, script: Script, bootstrap: str) -> Iterator[Callable[[list[str]], None]]:
    """Every script ends with it: the history is clean, and these are the values of the first partition."""
    asked: list[bool] = []

    def judge(values: list[str]) -> None:
        asked.append(True)
        outcome = run.judge(bootstrap)
        assert outcome.is_clean, str(outcome)
        with RawClient(bootstrap) as client:
            assert Log(client, script.topic).values() == [value.encode() for value in values]

    yield judge
    assert asked, "a script has to be judged"


Judged = Callable[[list[str]], None]


def through(script: Script, proxy: Proxy, kind: str) -> Producing:
    return Producing(script.place._replace(bootstrap=proxy.bootstrap), kind, script.new_id())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("commit", [True, False], ids=["E1", "E2"])
def test_an_end_arrives_inside_the_next_transaction(
    script: Script, proxy: Proxy, kind: str, commit: bool, judged: Judged
) -> None:
    producing = through(script, proxy, kind)
    held = proxy.on(END, Act.STRAND)
    producing.transaction(script.records("first"), is_commit=commit)
    producing.transaction(script.records("second"), is_commit=not commit, meanwhile=held.release)
    producing.transaction(script.records("third"), is_commit=True)
    producing.close()
    judged(["first" if commit else "second", "third"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("act", [Act.TWICE, Act.CUT_ANSWER], ids=["E3", "E4"])
def test_every_end_comes_twice_or_its_answer_is_lost(
    script: Script, proxy: Proxy, kind: str, act: Act, judged: Judged
) -> None:
    producing = through(script, proxy, kind)
    for number in range(6):
        proxy.on(END, act)
        assert producing.transaction(script.records(f"{number}"), is_commit=number % 3 != 1) == (
            number % 3 != 1
        )
    producing.close()
    judged(["0", "2", "3", "5"])


@pytest.mark.parametrize("generation", [1, 2])
def test_e5_records_that_arrive_after_the_abort_open_nothing(
    run: Run, script: Script, bootstrap: str, proxy: Proxy, generation: int, judged: Judged
) -> None:
    process = run.recorder.process("raw")
    with RawClient(proxy.bootstrap) as first, RawClient(bootstrap) as second:
        name = script.new_id()
        with process.init(name):
            producer = RawProducer(second, name, generation)
        transaction = process.begin(name)
        if generation == 1:
            assert producer.add(script.topic, 0) == [ErrorCode.NONE]
        held = proxy.on(PRODUCE, Act.HOLD)
        with process.produce(script.topic, 0, ["late"], transaction) as told:
            records = producer.batch(b"late", sequence=0)
            version = 9 if generation == 1 else 12
            first.send(produce_in(name, script.topic, records), version)
            held.wait()
            told.outcome = "info"
        with process.abort(transaction):
            producer.abort()
        held.release()
        frame = first.receive_frame()
        assert frame is not None
        _, position = decode_response_header(frame, PRODUCE, version)
        answer: Any = APIS[PRODUCE].response.decode(frame, version, position)
        assert answer.responses[0].partition_responses[0].error_code != ErrorCode.NONE
        assert Log(second, script.topic).is_settled
        second_transaction = process.begin(name)
        with process.produce(script.topic, 0, ["next"], second_transaction) as told:
            told.offset = producer.write(script.topic, b"next")
        with process.commit(second_transaction):
            producer.commit()
    judged(["next"])


@pytest.mark.parametrize("generation", [1, 2])
def test_e6_positions_that_are_held_across_a_rebalance_are_refused(
    run: Run, script: Script, bootstrap: str, proxy: Proxy, generation: int, judged: Judged
) -> None:
    """The partitions belong to another member by then, which may have read on."""
    process = run.recorder.process("raw")
    group, name = new_name("group"), script.new_id()
    with RawClient(proxy.bootstrap) as client, RawClient(bootstrap) as other:
        member = ClassicMember(other, group)
        with process.init(name):
            producer = RawProducer(client, name, generation)
        transaction = process.begin(name)
        if generation == 1:
            assert producer.add_offsets(group) == ErrorCode.NONE
        held = proxy.on(OFFSETS, Act.HOLD)
        codes: list[int] = []

        def send() -> None:
            fields: dict[str, Any] = {"member_id": member.member_id, "generation_id": member.generation}
            version = 3 if generation == 1 else 5
            codes.append(producer.send_offset(group, script.topic, 7, version=version, **fields))

        sending = threading.Thread(target=send)
        claims = [Claim(script.topic, 0, None, 7)]
        with process.send_offsets(transaction, group, claims, is_only_attempt=True) as told:
            sending.start()
            held.wait()
            leave_and_join(bootstrap, group, member)
            held.release()
            sending.join(30)
            assert codes, "no answer"
            assert codes[0] in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
            told.error = ErrorCode(codes[0]).name
        with process.produce(script.topic, 0, ["kept"], transaction) as produced:
            produced.offset = producer.write(script.topic, b"kept")
        with process.abort(transaction):
            producer.abort()
        started = run.recorder.clock()
        assert committed(other, group, script.topic, stable=True) == (ErrorCode.NONE, -1)
        process.offset_fetch(started, group, (script.topic, 0), None)
    judged([])


def leave_and_join(bootstrap: str, group: str, member: ClassicMember) -> None:
    """Another member joins: the group waits for the first one, which joins again, and both are of a new
    generation."""
    with RawClient(bootstrap) as joining:
        joining.send(join_request(group), 3)
        until(lambda: member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="a rebalance")
        again = join_request(group)
        again.member_id = member.member_id
        assert member.client.ask(again, 3).generation_id > member.generation


def test_e7_an_answer_to_init_that_comes_after_another_instance_is_worth_nothing(
    run: Run, script: Script, bootstrap: str, judged: Judged
) -> None:
    name = script.new_id()
    slow, quick = run.recorder.process("slow"), run.recorder.process("quick")
    init = transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    with RawClient(bootstrap) as first, RawClient(bootstrap) as second:
        with slow.init(name) as told:
            # It is answered, and the answer is on its way for a long time.
            first.send(init, 4)
            until(lambda: describe(second, name).error_code == ErrorCode.NONE, what="the first instance")
            with quick.init(name):
                newer = RawProducer(second, name)
            frame = first.receive_frame()
            assert frame is not None
            _, position = decode_response_header(frame, INIT, 4)
            answer: Any = APIS[INIT].response.decode(frame, 4, position)
            told.pair = (answer.producer_id, answer.producer_epoch)
        transaction = quick.begin(name)
        with quick.produce(script.topic, 0, ["newer"], transaction) as produced:
            produced.offset = newer.write(script.topic, b"newer")
        assert answer.error_code == ErrorCode.NONE
        old = (answer.producer_id, answer.producer_epoch)
        assert old < newer.pair
        assert newer.add(script.topic, 0, pair=old) == [ErrorCode.PRODUCER_FENCED]
        with quick.commit(transaction):
            newer.commit()
    judged(["newer"])


def test_e8_answers_are_lost_with_five_requests_under_way(
    run: Run, script: Script, proxy: Proxy, judged: Judged
) -> None:
    """Every record is there once and in order, and each was acknowledged with its own offset."""
    process = run.recorder.process("idempotent")
    offsets: dict[str, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value, offset = message.value(), message.offset()
        assert value is not None
        assert offset is not None
        offsets[value.decode()] = offset

    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "reconnect.backoff.ms": 10,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
    )
    values = [f"{number}" for number in range(60)]
    for after in (3, 5, 7):
        proxy.on(PRODUCE, Act.CUT_ANSWER, after=after)
    started = [process.produce(script.topic, 0, [value]) for value in values]
    told = [block.__enter__() for block in started]
    for value in values:
        producer.produce(script.topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(30) == 0
    for value, block, each in zip(values, started, told, strict=True):
        each.offset = offsets[value]
        block.__exit__(None, None, None)
    assert list(offsets.values()) == list(range(60))
    judged(values)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "parked"])
def test_e9_a_fetch_that_began_before_the_end_shows_what_it_decided(
    run: Run, script: Script, bootstrap: str, proxy: Proxy, commit: bool, is_held: bool, judged: Judged
) -> None:
    """It waits in the network or in the broker, and is answered behind the end of the transaction."""
    process, reading = run.recorder.process("raw"), run.recorder.process("parked")
    with RawClient(bootstrap) as client, RawClient(proxy.bootstrap) as reader:
        producer, transaction = script.begun(process, client, "a")
        held = proxy.on(FETCH, Act.HOLD) if is_held else None
        reading.assign({(script.topic, 0): 0})
        started = run.recorder.clock()
        reader.send(Log(reader, script.topic).request(0, max_wait_ms=20_000, min_bytes=1), 11)
        if held is not None:
            held.wait()
        else:
            until(lambda: proxy.count(FETCH), what="a fetch on its way")
        with process.commit(transaction) if commit else process.abort(transaction):
            (producer.commit if commit else producer.abort)()
        if held is not None:
            held.release()
        frame = reader.receive_frame()
        assert frame is not None
        _, position = decode_response_header(frame, FETCH, 11)
        answer: Any = APIS[FETCH].response.decode(frame, 11, position)
        part = answer.responses[0].partitions[0]
        values, end = deliver(bytes(part.records or b""), part.aborted_transactions)
        shown = [(script.topic, 0, 0, value.decode()) for value in values]
        reading.poll(started, shown, positions={(script.topic, 0): end})
        assert values == ([b"a"] if commit else [])
    judged(["a"] if commit else [])


def test_e10_a_connection_that_ends_inside_a_request(
    run: Run, script: Script, bootstrap: str, judged: Judged
) -> None:
    """After every byte of the first hundred of every request: nothing happens to the transaction."""
    process, group = run.recorder.process("raw"), new_name("group")
    with RawClient(bootstrap) as client:
        producer, transaction = script.begun(process, client, "a")
        for request, version in requests(producer, script.topic, group):
            frame = b"".join(encode_request(request, version, 1, "cut"))
            for length in range(1, min(len(frame), 100)):
                host, _, port = bootstrap.rpartition(":")
                with socket.create_connection((host, int(port)), 10) as cut:
                    cut.sendall(frame[:length])
        assert not Log(client, script.topic).is_settled, "somebody has ended the transaction"
        with process.produce(script.topic, 0, ["b"], transaction) as told:
            told.offset = producer.write(script.topic, b"b")
        with process.commit(transaction):
            producer.commit()
    judged(["a", "b"])


def requests(producer: RawProducer, topic: str, group: str) -> list[tuple[Request, int]]:
    """One of each kind that a transaction consists of."""
    name, (producer_id, epoch) = producer.transactional_id, producer.pair
    end = transactions.EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
    )
    offsets = transactions.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )
    init = transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return [
        (init, 4),
        (end, 3),
        (offsets, 3),
        (produce_in(name, topic, producer.batch(b"cut", sequence=1)), 9),
        (produce_request(topic, raw_batch()), 9),
        (Log(producer.client, topic).request(0), 11),
        (metadata, 9),
    ]


# -- the judge ----------------------------------------------------------------------------------------------


def test_a_run_that_is_not_clean_says_so_and_keeps_its_history(
    run: Run, script: Script, bootstrap: str
) -> None:
    """Somebody claims that a commit was acknowledged which never was, and leaves a transaction open."""
    process = run.recorder.process("liar")
    with RawClient(bootstrap) as client:
        _, transaction = script.begun(process, client, "lost")
        with process.commit(transaction):
            pass
        with Client(bootstrap) as admin:
            assert hanging(admin, bootstrap, (script.topic, 0)) == (1, 0), "the coordinator knows it"
    outcome = run.judge(bootstrap)
    assert not outcome.is_clean
    assert outcome.lost == 1
    (kept,) = outcome.kept
    path = Path(kept.split(" ", 1)[0])
    try:
        assert check(read_history([path])).anomalies == {"lost-write": 1}
    finally:
        path.unlink()
        path.parent.rmdir()
