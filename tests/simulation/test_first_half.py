"""The simulation finds nothing in the code as it is: the first half of the seeds."""

import pytest
from support.simulated import FIRST_HALF, nothing_is_wrong


@pytest.mark.parametrize("first", FIRST_HALF)
def test_nothing_is_wrong_in_any_history(first: int) -> None:
    nothing_is_wrong(first, FIRST_HALF.stop)
