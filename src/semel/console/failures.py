"""Turns errors into pages: what happened, what to do, and the HTTP status that fits."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from semel.client import (
    AuthenticationFailed,
    ClientError,
    ErrorCode,
    KafkaError,
    ProtocolError,
    UnsupportedRequest,
)
from semel.client.admin.blocking import NotOpen
from semel.console.clients import WorkStopped
from semel.console.forms import Conflict, FormError
from semel.console.rendering import failure
from semel.console.workers import Busy, SessionOver, TookTooLong
from semel.wire.errors import EncodeError

LOG = logging.getLogger(__name__)

_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
_FORBIDDEN: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
CLIENT_CLOSED_REQUEST: Final = 499


def status_of(error: KafkaError) -> int:
    """Return the HTTP status for a refusal of the broker."""
    if error.code in _NOT_FOUND:
        return 404
    if error.code in _FORBIDDEN:
        return 403
    return 503 if error.retriable else 409


async def of_kafka(request: Request, error: Exception) -> Response:
    """A broker answered with an error."""
    assert isinstance(error, KafkaError)
    status = status_of(error)
    title = {404: "Not found", 403: "Not allowed", 503: "Not now"}.get(status, "The broker refused")
    return failure(request, status, title, str(error), getattr(error.code, "name", str(error.code)))


async def of_client(request: Request, error: Exception) -> Response:
    """The client failed: no broker answered, or one of the cases below."""
    if isinstance(error, UnsupportedRequest):
        return failure(request, 501, "Not supported by this broker", str(error))
    if isinstance(error, NotOpen):
        return failure(request, 409, "Nothing to end", str(error))
    if isinstance(error, AuthenticationFailed):
        if request.app.state.everyone is None and request.state.session is not None:
            request.app.state.refuse(request.state.session)
        return failure(request, 403, "The broker refuses these credentials", str(error))
    return failure(
        request, 503, "The broker cannot be reached", f"{error} The page works again when the broker does."
    )


async def of_http(request: Request, error: Exception) -> Response:
    """There is no page at this address, or it does not accept this method."""
    assert isinstance(error, HTTPException)
    titles = {404: ("No such page", "there is nothing at this address."), 405: ("Wrong method", error.detail)}
    title, text = titles.get(error.status_code, ("Refused", error.detail))
    return failure(request, error.status_code, title, text)


async def of_busy(request: Request, error: Exception) -> Response:
    """A limit on concurrent work is reached."""
    return failure(request, 503, "Too busy", str(error))


async def of_stopped(request: Request, error: Exception) -> Response:
    """The work was stopped, usually because the browser has disconnected and does not read this."""
    return failure(request, CLIENT_CLOSED_REQUEST, "Stopped", str(error))


async def of_time(request: Request, error: Exception) -> Response:
    """The page exceeded its time limit."""
    return failure(request, 504, "Took too long", str(error))


async def of_form(request: Request, error: Exception) -> Response:
    """A form or an address has a wrong value, or the change conflicts with the present state."""
    if isinstance(error, Conflict):
        return failure(request, 409, "Nothing was changed", str(error))
    return failure(request, 400, "Please check", str(error))


async def of_value(request: Request, error: Exception) -> Response:
    """A number with more digits than Python parses, in an address or form. Another ValueError is a bug."""
    if "integer string conversion" in str(error):
        return failure(request, 400, "Please check", "a number has too many digits.")
    return await of_bug(request, error)


async def of_encode(request: Request, error: Exception) -> Response:
    """A number or a text that a field of Kafka's protocol cannot carry."""
    return failure(request, 400, "Please check", f"{error}.")


async def of_over(request: Request, error: Exception) -> Response:
    """The user has logged out while the page was rendered."""
    return failure(request, 401, "Logged out", str(error))


async def of_bug(request: Request, error: Exception) -> Response:
    """An error of the console itself."""
    LOG.error("the page %s failed", request.scope["path"], exc_info=error)
    return failure(request, 500, "This page failed", "that is a bug of the console; its log has the details.")


HANDLERS: Final[Mapping[Any, Any]] = {
    KafkaError: of_kafka,
    ClientError: of_client,
    ProtocolError: of_client,
    HTTPException: of_http,
    Busy: of_busy,
    WorkStopped: of_stopped,
    TookTooLong: of_time,
    FormError: of_form,
    EncodeError: of_encode,
    SessionOver: of_over,
    ValueError: of_value,
}
