"""What the tests of transactions with different clients share."""

import pytest

from support.brokers.peer import PEER, Timed
from support.clients.raw import RawClient
from support.clients.raw_transactions import describe
from support.waiting import until

PARTITIONS = 5
VISIBILITIES = ["marker"] if PEER else ["marker", "journal"]
# For tests that are not about visibility: `make test` runs one visibility, `make verify` the other too.
ONE_VISIBILITY = pytest.mark.parametrize(
    "visibility", ["marker", *(pytest.param(each, marks=pytest.mark.slow) for each in VISIBILITIES[1:])]
)
PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSETS = 0, 22, 24, 25, 26, 28
REQUESTS = [PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSETS]

Found = list[tuple[int, int, bytes]]
"""Records: partition, offset, value."""


def numbered(word: str, count: int = 10) -> list[bytes]:
    return [b"%s-%03d" % (word.encode(), number) for number in range(count)]


def values_of(records: Found) -> list[bytes]:
    return sorted(value for _, _, value in records)


def check_second_was_aborted(visibility: str, committed: Found, everything: Found) -> None:
    """Check what readers of each isolation level see of three transactions, the second one aborted."""
    expected = numbered("first") + numbered("third")
    assert values_of(committed) == expected
    if visibility == "journal":
        # Plain consumers, too, see only committed records, without gaps and in the order of commits.
        assert values_of(everything) == expected
        assert [each[:2] for each in everything] == [(index, at) for index in range(5) for at in range(4)]
    else:
        assert values_of(everything) == sorted([*expected, *numbered("second")])


def visibility_configs(visibility: str) -> dict[str, str]:
    """The topic config for a visibility. Other brokers do not know it."""
    return {} if PEER else {"semel.visibility": visibility}


SLOW_S = 20
"""The timeout of a transaction that is to time out."""


def time_out(broker: Timed, transactional_id: str) -> None:
    """Let the timeout of this id's transaction pass; wait until the broker has aborted it."""
    broker.passes(SLOW_S)
    with RawClient(broker.address) as client:
        until(
            lambda: describe(client, transactional_id).transaction_state == "CompleteAbort", what="the abort"
        )
