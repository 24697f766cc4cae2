"""Seeds that make random choices repeatable."""

import os
import random


def fresh_seed() -> int:
    """Return a random seed, or ``SEMEL_SEED``. It is printed, so that a failure can be repeated."""
    seed = int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SEMEL_SEED={seed}", flush=True)  # noqa: T201 - shown when a test fails
    return seed
