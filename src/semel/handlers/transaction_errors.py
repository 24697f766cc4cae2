"""Chooses the transaction error that a client gets, by API and version.

The transaction rules have one error for each situation, the same as Kafka's coordinator. A client older than
an error would treat it as unknown and fatal, so it gets the nearest error that it knows. Two APIs never send
PRODUCER_FENCED, as in Kafka: their clients expect INVALID_PRODUCER_EPOCH. This table has all replacements;
APIs that it does not name send the error of the rules. Kafka's other replacements are for states between two
brokers, or between two steps, that do not exist in Semel.
"""

from typing import Final, NoReturn

from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.wire.api_key import ApiKey

_NEVER: Final = 1_000

SENT_SINCE: Final[dict[ErrorCode, tuple[ErrorCode, dict[int, int]]]] = {
    ErrorCode.PRODUCER_FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        {
            ApiKey.PRODUCE: _NEVER,
            ApiKey.INIT_PRODUCER_ID: 4,
            ApiKey.ADD_PARTITIONS_TO_TXN: 2,
            ApiKey.ADD_OFFSETS_TO_TXN: 2,
            ApiKey.END_TXN: 2,
            ApiKey.TXN_OFFSET_COMMIT: _NEVER,
        },
    ),
    ErrorCode.TRANSACTION_ABORTABLE: (
        ErrorCode.INVALID_TXN_STATE,
        {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4},
    ),
}
"""By error: what is sent instead, and the first version of each API that sends the error itself."""


def error_for_client(error: ErrorCode, api_key: int, version: int) -> ErrorCode:
    """The error to send to a client that uses this version of the API."""
    if not error or error not in SENT_SINCE:
        return error
    instead, since = SENT_SINCE[error]
    return instead if version < since.get(api_key, 0) else error


def close_superseded(transactional_id: str) -> NoReturn:
    """Close the connection: a newer one has used the id, so requests on this one are late."""
    raise CloseConnection(f"a newer connection uses transactional id {transactional_id[:100]!r}")
