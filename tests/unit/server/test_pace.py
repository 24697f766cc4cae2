"""Slow is not dead, and a byte a second is not alive."""

from semel.server.outgoing import SLOWEST_BYTES_PER_SECOND, Pace

PATIENCE = 60.0


def stalled(step_bytes: int, seconds: int, *, is_waited_for: bool = False) -> float:
    """The first verdict on a client that moves so many bytes every second."""
    pace = Pace()
    pace.restart(0, 0.0)
    for second in range(1, seconds + 1):
        verdict = pace.stalled_seconds(
            step_bytes * second, float(second), PATIENCE, is_waited_for=is_waited_for
        )
        if verdict:
            return verdict
    return 0.0


def test_a_slow_line_is_kept() -> None:
    assert stalled(SLOWEST_BYTES_PER_SECOND, 10_000) == 0.0


def test_a_byte_a_second_is_closed_after_the_patience() -> None:
    assert stalled(1, 10_000) == 61.0


def test_a_stop_in_the_middle_is_closed_though_much_came_before() -> None:
    pace = Pace()
    pace.restart(0, 0.0)
    assert pace.stalled_seconds(100_000_000, 1.0, PATIENCE, is_waited_for=False) == 0.0
    assert pace.stalled_seconds(100_000_000, 50.0, PATIENCE, is_waited_for=False) == 0.0
    assert pace.stalled_seconds(100_000_000, 62.0, PATIENCE, is_waited_for=False) == 61.0


def test_while_others_wait_a_slow_line_is_too_slow() -> None:
    assert stalled(SLOWEST_BYTES_PER_SECOND, 10, is_waited_for=True) == 2.0
    assert stalled(2_000_000, 10, is_waited_for=True) == 0.0
