"""Sends a request to every broker, since each lists only the groups or transactions that it coordinates."""

from typing import Any

from semel.client.errors import ClientError, KafkaError, check
from semel.client.net.cluster import Client
from semel.client.net.retry import Attempts
from semel.wire.schema import Request


def ask_every_broker(client: Client, request: Request, what: str) -> list[Any]:
    """Return the responses of all brokers. `what` names the listed things in errors.

    If one broker fails, all are queried again, because others may have taken over what it coordinated.
    """
    for attempt in Attempts(client.patience_s):
        responses = []
        try:
            for node in client.describe(topics=()).nodes:
                response = client.send(request, node=node.node_id)
                check(response.error_code, f"broker {node.node_id} does not list its {what}")
                responses.append(response)
            return responses
        except (KafkaError, ClientError) as error:
            attempt.failed(error)
    raise AssertionError("attempts end with an error")
