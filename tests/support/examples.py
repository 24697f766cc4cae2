"""How many examples the property tests try.

`make test` tries a few, and other ones in every run. `make verify` sets `SEMEL_EXAMPLES` and tries many times
as many.
"""

import os
from typing import Any

from hypothesis import settings

FACTOR = int(os.environ.get("SEMEL_EXAMPLES", "1"))


def examples(count: int, *, few: int | None = None, **others: Any) -> settings:
    """Settings for this many examples, times the factor of `make verify`, or for `few` in `make test`."""
    tried = few if few is not None and FACTOR == 1 else count * FACTOR
    return settings(max_examples=tried, deadline=None, **others)
