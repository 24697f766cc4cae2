"""One request to several brokers: to the leaders of partitions, or to all brokers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from semel.client.errors import ErrorCode, KafkaError, ProtocolError, check, is_retriable
from semel.client.net.cluster import Client
from semel.client.net.retry import retrying
from semel.wire.schema import Request

Key: TypeAlias = tuple[str, int]
"""A partition: the name of its topic, and its number."""

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


def by_node(client: Client, partitions: Iterable[Key]) -> dict[int, list[Key]]:
    """Group partitions by the broker that leads them."""
    grouped: dict[int, list[Key]] = {}
    for topic, partition in partitions:
        grouped.setdefault(client.leader(topic, partition), []).append((topic, partition))
    return grouped


def by_topic(partitions: Iterable[tuple[T, int]]) -> dict[T, list[int]]:
    """Group partitions by their topic, which is a name or an id."""
    grouped: dict[T, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def leader_may_move(error: Exception) -> bool:
    """Whether a retry may find the leader. False if the partition does not exist."""
    if isinstance(error, KafkaError):
        return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return is_retriable(error)


def ask_leaders(
    client: Client,
    questions: Mapping[Key, Q],
    ask: Callable[[int, dict[Key, Q]], Iterable[tuple[Key, A]]],
) -> dict[Key, A]:
    """Ask the leader of each partition, and return the answers; retry within the client's `patience_s`.

    `ask` sends one broker the questions about partitions that it leads, and returns its answers up to the
    first error. Partitions without an answer are asked about again, perhaps at another leader.
    """
    answers: dict[Key, A] = {}

    def ask_for_missing() -> dict[Key, A]:
        missing = {key: question for key, question in questions.items() if key not in answers}
        for node, keys in by_node(client, missing).items():
            for key, answer in ask(node, {key: missing[key] for key in keys}):
                answers[key] = answer
        if omitted := questions.keys() - answers.keys():
            raise ProtocolError(f"the response has no answer for {omitted}")
        return answers

    def forget_leaders() -> None:
        for topic in {key[0] for key in questions if key not in answers}:
            client.forget_topic(topic)

    return retrying(ask_for_missing, client.patience_s, retriable=leader_may_move, on_failure=forget_leaders)


def ask_every_broker(client: Client, request: Request, what: str) -> list[Any]:
    """Return the responses of all brokers: each lists only the groups or transactions that it coordinates.

    `what` names the listed things in errors. If one broker fails, all are asked again, because others may
    have taken over what it coordinated.
    """

    def ask() -> list[Any]:
        responses = []
        for node in client.describe(topics=()).nodes:
            response = client.send(request, node=node.node_id)
            check(response.error_code, f"broker {node.node_id} does not list its {what}")
            responses.append(response)
        return responses

    return retrying(ask, client.patience_s)
