"""Every bound on the work that records, searches and browsers can cause, with its reason."""

from dataclasses import dataclass
from typing import Final

BATCH_BYTES_MAX: Final = 32 << 20
"""The largest decompressed size of a batch. The largest record that a topic accepts by default is 1 MiB."""
HEADERS_READ_MAX: Final = 200
"""Headers of a record that are decoded for showing and searching; a record can hold millions."""
HEADERS_COPIED_MAX: Final = 100_000
"""Headers of a record that replaying and downloading copy."""
LOOKAHEAD_BYTES_MAX: Final = 16 << 20
"""How far to read beyond the shown records for the outcomes of transactions above the last stable offset."""

KEY_SHOWN_BYTES: Final = 256
"""Bytes of a key that a list shows."""
VALUE_SHOWN_BYTES: Final = 1024
"""Bytes of a value that a list shows."""
HEADERS_SHOWN: Final = 8
"""Headers of a record that a list shows."""
WHOLE_SHOWN_BYTES: Final = 256 << 10
"""Bytes of a value that its own page shows: more makes a browser slow. The page links to the whole value."""
PARSED_BYTES_MAX: Final = 4 << 20
"""The largest value that is parsed for a JSON path or with a schema; parsing takes ten times its size."""

QUERY_CHARS_MAX: Final = 2000
"""Characters of a search, which is part of an address."""
TERMS_MAX: Final = 20
"""Terms of a search; each costs a pass over every record."""
PATTERN_MEMORY_BYTES: Final = 4 << 20
"""Memory for the automaton of a regular expression."""
PATTERN_STEPS_MAX: Final = 1000
"""Instructions of a regular expression. When its memory is full, RE2 takes up to as many steps per byte."""
PATTERN_WORK_MAX: Final = 400 << 20
"""Instructions times bytes of one search in a value, which cannot be interrupted: five seconds at worst."""
PATH_VALUES_MAX: Final = 1000
"""Values that a JSON path may select; `$..*` selects everything."""

ROWS_DEFAULT: Final = 50
ROWS_MAX: Final = 500
"""Records on a page."""
TAIL_ROWS_MAX: Final = 200
"""Records in one event of a live tail; a browser cannot show more, so older ones are left out."""

RECORDS_PRODUCED_MAX: Final = 10_000
"""Records written by one form or file."""
PRODUCED_BYTES_MAX: Final = 16 << 20
"""Bytes written by one form, file or replay."""
REPLAYED_MAX: Final = 1000
"""Records that one replay sends again."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits at which a scan stops before its end. The page offers to continue from there."""

    matches: int
    records: int
    read_bytes: int
    seconds: float


PAGE: Final = ScanLimits(matches=ROWS_DEFAULT, records=200_000, read_bytes=64 << 20, seconds=5.0)
"""A page without a live part, which must answer quickly."""
SEARCH: Final = ScanLimits(matches=ROWS_MAX, records=5_000_000, read_bytes=1 << 30, seconds=60.0)
"""A search with progress, which the user watches and can stop."""
EXPORT: Final = ScanLimits(matches=1_000_000, records=20_000_000, read_bytes=4 << 30, seconds=600.0)
"""A download."""
