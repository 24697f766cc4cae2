"""The client with nothing in between."""

import time

from bench.raw import batch
from semel.wire.batch import read_header


def test_records_are_of_today_so_that_retention_leaves_them() -> None:
    """They were of 2023: a broker that looked for old ones took them from under the reader that waited."""
    header = read_header(batch([b"value"]))
    assert abs(header.max_timestamp - time.time() * 1000) < 24 * 3_600_000
