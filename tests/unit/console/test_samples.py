"""Samples are read by pages while the next one is added on a thread."""

import sys
import threading
from types import FrameType
from typing import Any

from semel.console.sampling import Ends, Series


def test_a_chart_is_read_while_a_point_is_added() -> None:
    series = Series(900)
    for second in range(900):
        series.add(float(second), 1.0)
    over = threading.Event()

    def add() -> None:
        while not over.is_set():
            series.add(1000.0, 1.0)

    thread = threading.Thread(target=add)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Threads take turns often.
    thread.start()
    try:
        for _ in range(3_000):
            times, values = series.columns()
            assert len(times) == len(values) == 900
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)


def test_the_time_of_an_offset_is_right_between_any_two_steps_of_adding_an_end() -> None:
    ends = Ends()
    reads = 0

    def between(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal reads
        if frame.f_code is Ends.add.__code__:
            for offset in range(0, 10 * Ends.POINTS_MAX, 10):
                passed = ends.passed(offset)
                reads += passed is not None
                # Whichever points there are, none was seen before the end had passed the offset.
                assert passed is None or passed * 10 > offset
        return between

    tracing = sys.gettrace()
    sys.settrace(between)
    try:
        for _ in range(2):  # The log grows until points are dropped, and is then made anew.
            for second in range(1, 2 * Ends.POINTS_MAX):
                ends.add(float(second), second * 10)
    finally:
        sys.settrace(tracing)
    assert reads > 1_000
