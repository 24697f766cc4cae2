"""What is left to chance can be repeated."""

import os
import random


def fresh_seed() -> int:
    """Any, or the one of ``SEMEL_SEED``. It is printed: whoever sees a failure can repeat the choices."""
    seed = int(os.environ.get("SEMEL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SEMEL_SEED={seed}", flush=True)  # noqa: T201 - shown when a test fails
    return seed
