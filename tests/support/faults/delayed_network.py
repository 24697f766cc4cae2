"""Histories of one producer on a network that delays, duplicates and loses requests and responses."""

import random
from typing import NamedTuple

from semel.wire.errors import ErrorCode
from support.clients.raw import RawClient
from support.clients.raw_transactions import Log, RawProducer, committed
from support.clients.stubborn import StubbornClient
from support.faults.proxy import Act, Proxy, Rule

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, OFFSETS = 0, 24, 25, 26, 28
PARTITIONS = 2


class Logs:
    """A topic with its partitions, as readers see them."""

    def __init__(self, reader: RawClient, topic: str) -> None:
        self.topic = topic
        self.partitions = [Log(reader, topic, index) for index in range(PARTITIONS)]

    def values(self) -> list[list[bytes]]:
        return [log.values() for log in self.partitions]

    def is_settled(self) -> bool:
        return all(log.is_settled for log in self.partitions)


def write(producer: RawProducer, logs: Logs, value: bytes) -> None:
    """Write the same record to every partition."""
    for partition in range(PARTITIONS):
        producer.write(logs.topic, value, partition=partition)


def finish(producer: RawProducer, version: int, *, commit: bool) -> int:
    """End the transaction in any version; return the error code. A new producer id and epoch are used."""
    answer = producer.end(commit=commit, version=version)
    if answer.error_code == ErrorCode.NONE and version >= 5:
        producer.take(answer)
    return int(answer.error_code)


class Told(NamedTuple):
    """What a producer knows about one of its transactions: the outcome it asked for, and the error code."""

    value: bytes
    commit: bool
    code: int


ACTS = (Act.PASS, Act.STRAND, Act.STRAND, Act.ECHO, Act.TWICE, Act.CUT, Act.CUT_ANSWER)
LATE = (Act.STRAND, Act.ECHO)


class History:
    """A few transactions of one producer on an unreliable network."""

    def __init__(self, number: int, proxy: Proxy, logs: Logs, generation: int) -> None:
        self.chance = random.Random(number)
        self.number = number
        self.proxy = proxy
        self.logs = logs
        self.generation = generation
        self.group = f"history {number} of {logs.topic}"
        self.told: list[Told] = []
        self.late: list[Rule] = []

    def run(self) -> None:
        with StubbornClient(self.proxy.bootstrap) as client:
            producer = RawProducer(client, generation=self.generation)
            for index in range(self.chance.randrange(2, 6)):
                self._transaction(producer, b"%d/%d" % (self.number, index))
            for rule in self.late:
                rule.release()
            if not all(told.code == ErrorCode.NONE for told in self.told):
                # A client that gets an error it does not understand starts again with InitProducerId.
                producer.take(producer.init())

    def _transaction(self, producer: RawProducer, value: bytes) -> None:
        commit = self.chance.random() < 0.6
        try:
            for partition in range(PARTITIONS):
                self._disturb(ADD_PARTITIONS if self.generation == 1 else PRODUCE, 0.2)
                self._maybe_release()
                producer.write(self.logs.topic, value, partition=partition)
            self._disturb(
                self.chance.choice([ADD_OFFSETS, OFFSETS]) if self.generation == 1 else OFFSETS, 0.2
            )
            producer.write_offset(self.group, self.logs.topic, len(self.told))
            self._maybe_release()
            self._disturb(END, 0.7)
            code = finish(producer, 5 if self.generation == 2 else 1, commit=commit)
        except AssertionError:
            # A request in the middle was refused, because something else had ended the transaction.
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        self.told.append(Told(value, commit, int(code)))
        if code != ErrorCode.NONE:
            producer.take(producer.init())

    def _disturb(self, api_key: int, share: float) -> None:
        if self.chance.random() < share:
            act = self.chance.choice(ACTS)
            rule = self.proxy.on(api_key, act)
            if act in LATE:
                self.late.append(rule)

    def _maybe_release(self) -> None:
        while self.late and self.chance.random() < 0.5:
            self.late.pop(self.chance.randrange(len(self.late))).release()

    def anomalies(self, reader: RawClient, seen: list[list[bytes]]) -> list[str]:
        """List what contradicts the producer's knowledge, given all values of each partition."""
        found = []
        position = max((index for index, told in enumerate(self.told) if told.commit), default=-1)
        if committed(reader, self.group, self.logs.topic, stable=True) != (ErrorCode.NONE, position):
            found.append(f"{self.told}: the group is not at {position}")
        for told in self.told:
            copies = [values.count(told.value) for values in seen]
            if told.code != ErrorCode.NONE or copies != [int(told.commit)] * PARTITIONS:
                found.append(f"{told} is in the partitions {copies} times")
        return found
