"""Which error a client gets, by API and version."""

import pytest

from semel.core.types import ErrorCode
from semel.handlers.transaction_errors import error_for_client
from semel.wire.messages import APIS

FENCED, EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
ABORTABLE, STATE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("api_key", "first_fenced", "first_abortable"),
    [(0, 99, 11), (22, 4, 0), (24, 2, 0), (25, 2, 0), (26, 2, 0), (28, 99, 4)],
)
def test_older_clients_are_told_what_they_know(api_key: int, first_fenced: int, first_abortable: int) -> None:
    for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1):
        assert error_for_client(FENCED, api_key, version) == (FENCED if version >= first_fenced else EPOCH)
        assert error_for_client(ABORTABLE, api_key, version) == (
            ABORTABLE if version >= first_abortable else STATE
        )
        for unchanged in (ErrorCode.NONE, EPOCH, STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            assert error_for_client(unchanged, api_key, version) == unchanged
