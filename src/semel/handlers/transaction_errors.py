"""Translates transaction errors for older clients, by API and version.

The transaction rules have one error for each situation, the same as Kafka's coordinator. A client older than
an error would treat it as unknown and fatal, so it gets the nearest error that it knows. This table has all
such translations. Kafka's other translations are for states between two brokers, or between two steps, that
do not exist in Semel.
"""

from typing import Final, NoReturn

from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28

_NEVER: Final = 1_000

_KNOWN_SINCE: Final[dict[ErrorCode, tuple[ErrorCode, dict[int, int]]]] = {
    ErrorCode.PRODUCER_FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        {
            PRODUCE: _NEVER,
            INIT_PRODUCER_ID: 4,
            ADD_PARTITIONS_TO_TXN: 2,
            ADD_OFFSETS_TO_TXN: 2,
            END_TXN: 2,
            TXN_OFFSET_COMMIT: _NEVER,
        },
    ),
    ErrorCode.TRANSACTION_ABORTABLE: (ErrorCode.INVALID_TXN_STATE, {PRODUCE: 11, TXN_OFFSET_COMMIT: 4}),
}
"""By error: its replacement for older clients, and the first version of each API that knows it."""


def told(error: ErrorCode, api_key: int, version: int) -> ErrorCode:
    """The error to send to a client that uses this version of the API."""
    if not error or error not in _KNOWN_SINCE:
        return error
    instead, since = _KNOWN_SINCE[error]
    return instead if version < since.get(api_key, 0) else error


def close_superseded(transactional_id: str) -> NoReturn:
    """Close the connection: a newer one has used the id, so requests on this one are late."""
    raise CloseConnection(f"a newer connection uses transactional id {transactional_id[:100]!r}")
