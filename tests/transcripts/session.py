"""What the commands of one transcript share: the broker, the topics, and the clients with what they hold.

A client is a name before a colon. It holds the producer id and epoch of its last successful answer, as real
clients do, and shows them in its next request. ``epoch=`` and ``producer-id=`` show others instead: a request
that was long under way. After ``lost`` the client does not see the answer, so it keeps what it holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transcripts.broker import Broker
from transcripts.parsing import Call, TranscriptError
from transcripts.printing import facts_text, given_text, name_of, topic_id

from semel.core.topic_configs import value_of
from semel.core.transactions.commands import SUPERSEDED, ProducerGiven
from semel.core.types import Command, Decision, ErrorCode, OffsetKey, PartitionKey, Topic, TopicKey
from semel.handlers.transaction_errors import error_for_client


@dataclass
class Client:
    """A producer: its transactional id, the generation it speaks, and the producer id and epoch it holds."""

    transactional_id: str | None
    version: int
    producer_id: int
    epoch: int


class Session:
    """One run of one transcript."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.clients: dict[str, Client] = {}
        self.allows_two_phase = False

    def client(self, call: Call) -> Client:
        """The client that sends a request, with what the request shows in place of what it holds."""
        known = self.named(call.client or "")
        return Client(
            known.transactional_id,
            known.version,
            call.number("producer-id", known.producer_id),
            call.number("epoch", known.epoch),
        )

    def named(self, name: str) -> Client:
        """The client of this name."""
        if name not in self.clients:
            raise TranscriptError(f"no client {name!r} has begun")
        return self.clients[name]

    def topic(self, name: str) -> Topic:
        """The topic of this name."""
        found = self.broker.state.topics.get(TopicKey(name))
        if found is None:
            raise TranscriptError(f"there is no topic {name!r}")
        return found

    def partition(self, text: str) -> PartitionKey:
        """``orders/0``."""
        name, slash, index = text.partition("/")
        if not slash or not index.isdecimal() or int(index) >= self.topic(name).partitions:
            raise TranscriptError(f"{text!r} is not a partition, such as orders/0")
        return PartitionKey(topic_id(name), int(index))

    def config(self, partition: PartitionKey, name: str) -> str:
        """The value of a config in the topic of a partition."""
        return value_of(name, self.topic(name_of(partition).partition("/")[0]).configs, {})

    def offset_key(self, group_id: str, text: str) -> OffsetKey:
        """A group's position in ``orders/0``."""
        return OffsetKey(group_id, text.partition("/")[0], self.partition(text).index)

    def decide(self, command: Command[Any]) -> tuple[Decision, Iterator[str]]:
        """Decide a command; the decision, and its facts as text."""
        decision = self.broker.decide(command)
        return decision, facts_text(decision)

    def adopt(self, call: Call, client: Client, decision: Decision, api_key: int, *, lost: bool) -> str:
        """The answer that gives a producer id and epoch; the client takes them unless it is late or lost."""
        if decision.answer is SUPERSEDED:
            return answer_line("none, the connection is closed", lost=lost)
        assert call.client is not None
        given: ProducerGiven = decision.answer
        given = given.but(error=self.told(given.error, api_key, client.version))
        if not given.error and not lost:
            self.clients[call.client] = Client(
                client.transactional_id, client.version, given.producer_id, given.epoch
            )
        return answer_line(given_text(given), lost=lost)

    @staticmethod
    def told(error: ErrorCode, api_key: int, version: int) -> ErrorCode:
        """The error as the newest clients of a generation are told it (``handlers/transaction_errors``)."""
        return error_for_client(error, api_key, NEWEST_VERSIONS[api_key][version])


NEWEST_VERSIONS = {0: (11, 11, 12), 22: (5, 5, 5), 24: (3, 3, 3), 25: (4, 4, 4), 26: (4, 4, 5), 28: (4, 4, 5)}
"""By API: the newest version sent by a client without transactions, of generation 1 and of generation 2."""


def answer_line(text: str, *, lost: bool = False) -> str:
    """The last line of a step."""
    return f"answer (lost): {text}" if lost else f"answer: {text}"
