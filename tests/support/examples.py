"""How many examples the property tests try.

`make test` tries a few, and other ones in every run. `make verify` sets `SEMEL_EXAMPLES` and tries many times
as many.
"""

import os
from typing import Any

from hypothesis import settings

FACTOR = int(os.environ.get("SEMEL_EXAMPLES", "1"))


def examples(count: int, **others: Any) -> settings:
    """Settings for this many examples in `make test`."""
    return settings(max_examples=count * FACTOR, deadline=None, **others)
