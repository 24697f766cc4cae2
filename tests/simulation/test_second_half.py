"""The simulation finds nothing in the code as it is: the second half of the seeds."""

import pytest
from support.simulated import HISTORIES, SECOND_HALF, nothing_is_wrong


@pytest.mark.parametrize("first", SECOND_HALF)
def test_nothing_is_wrong_in_any_history(first: int) -> None:
    nothing_is_wrong(first, HISTORIES)
