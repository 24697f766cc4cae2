"""The recorder: what clients do is in the file, whatever becomes of them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException

import semel
from semel.check import Claim, Commit, Poll, Produce, Recorder, check, read_history
from semel.check.recorder import error_name
from semel.client import (
    Admin,
    Client,
    Consumer,
    ErrorCode,
    Isolation,
    KafkaError,
    NewTopic,
    TransactionalProducer,
)

KILLED = """
import os, signal, sys
from semel.check import Recorder
process = Recorder(sys.argv[1]).process("killed")
transaction = process.begin("id")
with process.produce("t", 0, ["a"], transaction) as told:
    told.offset = 0
with process.commit(transaction):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_real_pipeline_is_recorded(tmp_path: Path) -> None:
    """Transactions that commit and abort, and a reader, against a broker."""
    with (
        semel.embedded() as broker,
        Client(broker.bootstrap_servers) as client,
        Recorder(tmp_path / "h.jsonl") as recorder,
    ):
        Admin(client).topics.create(NewTopic("t"))
        process = recorder.process("writer")
        with process.init("writer-0"):
            producer = TransactionalProducer(client, "writer-0")
        for number in range(10):
            transaction = process.begin("writer-0")
            producer.begin()
            with process.produce("t", 0, [number], transaction):
                producer.send("t", str(number).encode())
                producer.flush()
            if number % 3:
                with process.commit(transaction):
                    producer.commit()
            else:
                with process.abort(transaction):
                    producer.abort()
        producer.close()
        reader = recorder.process("reader")
        reader.assign({("t", 0): 0})
        with Consumer(client, "t", isolation=Isolation.READ_COMMITTED) as consumer:
            started = recorder.clock()
            reader.poll(
                started,
                [
                    (each.topic, each.partition, each.offset, int(each.value or b""))
                    for each in consumer.read_to_end()
                ],
            )
    verdict = check(read_history([tmp_path / "h.jsonl"]))
    assert verdict.is_clean, str(verdict)
    assert verdict.transactions == {"aborted": 4, "committed": 6}
    (poll,) = [each for each in read_history([tmp_path / "h.jsonl"]) if isinstance(each, Poll)]
    assert [value for _, value in poll.records] == [number for number in range(10) if number % 3]


def test_what_was_asked_for_is_known_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    begin, asked, produced, commit = read_history([path])
    assert isinstance(asked, Produce)
    assert isinstance(produced, Produce)
    assert (asked.outcome, asked.ended, produced.outcome, produced.offset) == ("info", None, "ok", 0)
    assert isinstance(commit, Commit)
    assert (commit.outcome, commit.ended) == ("info", None)
    verdict = check([begin, asked, produced, commit])
    assert verdict.is_clean
    assert verdict.transactions == {"unknown": 1}


def test_an_error_ends_a_block(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h.jsonl") as recorder:
        process = recorder.process("w")
        transaction = process.begin("id")
        with pytest.raises(KafkaError), process.commit(transaction, is_only_attempt=True):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        with pytest.raises(TimeoutError), process.send_offsets(transaction, "g", [Claim("t", 0, 0, 1)]):
            raise TimeoutError
        with process.abort(transaction) as told:
            told.outcome = "info"
    *_, refused, _, sent, _, aborted = read_history([tmp_path / "h.jsonl"])
    assert (refused.outcome, refused.error) == ("fail", "INVALID_TXN_STATE")  # type: ignore[union-attr]
    assert (sent.outcome, sent.error) == ("info", "TimeoutError")  # type: ignore[union-attr]
    assert aborted.outcome == "info"  # type: ignore[union-attr]


def test_errors_of_other_clients_have_their_names() -> None:
    assert error_name(KafkaException(ConfluentError(ConfluentError.INVALID_TXN_STATE))) == "INVALID_TXN_STATE"
    assert error_name(KafkaException(ConfluentError(ConfluentError._TIMED_OUT))) == "_TIMED_OUT"
    assert error_name(KafkaError(ErrorCode.PRODUCER_FENCED, "gone")) == "PRODUCER_FENCED"
    assert error_name(ValueError("NO")) == "ValueError"


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    count = 200
    with Recorder(tmp_path / "h.jsonl") as recorder:

        def work() -> None:
            process = recorder.process("w")
            for number in range(count):
                with process.offset_commit("g", ("t", 0), number):
                    pass
                process.offset_fetch(recorder.clock(), "g", ("t", 0), number)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = list(read_history([tmp_path / "h.jsonl"]))
    assert len(found) == 4 * count * 3
    assert len({each.process for each in found}) == 4  # type: ignore[union-attr]
    assert str(os.getpid()) in str(found[0].process)  # type: ignore[union-attr]
