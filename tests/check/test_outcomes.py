"""What an error says about an operation."""

import pytest

from semel.check import outcome_of
from semel.check.history import KINDS
from semel.check.transactions import READS, REFUSALS, REPEATS
from semel.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("kind", "error", "is_only_attempt", "outcome"),
    [
        ("commit", None, False, "ok"),
        ("commit", "NONE", False, "ok"),
        # After an attempt without an answer, this one may have come too late.
        ("commit", "PRODUCER_FENCED", False, "info"),
        ("commit", "INVALID_TXN_STATE", False, "info"),
        ("commit", "PRODUCER_FENCED", True, "fail"),
        ("commit", "REQUEST_TIMED_OUT", True, "info"),
        ("commit", "UNKNOWN_SERVER_ERROR", True, "info"),
        ("commit", "_TIMED_OUT", True, "info"),
        ("abort", "INVALID_TXN_STATE", True, "fail"),
        ("produce", "NOT_LEADER_OR_FOLLOWER", True, "info"),
        ("produce", "MESSAGE_TOO_LARGE", True, "fail"),
        ("produce", "OUT_OF_ORDER_SEQUENCE_NUMBER", False, "info"),
        ("produce", "DUPLICATE_SEQUENCE_NUMBER", False, "ok"),
        ("send_offsets", "ILLEGAL_GENERATION", True, "fail"),
        ("offset_commit", "NETWORK_EXCEPTION", True, "info"),
        ("poll", "NETWORK_EXCEPTION", False, "fail"),
        ("offset_fetch", "UNSTABLE_OFFSET_COMMIT", False, "fail"),
    ],
)
def test_outcomes(kind: str, error: str | None, is_only_attempt: bool, outcome: str) -> None:
    assert outcome_of(kind, error, is_only_attempt=is_only_attempt) == outcome


def test_every_kind_has_a_row_and_every_error_is_one_of_the_protocol() -> None:
    assert REFUSALS.keys() | READS == KINDS.keys() - {"topic"}
    told = frozenset().union(*REFUSALS.values(), *REPEATS.values())
    assert told <= set(ErrorCode.__members__)
