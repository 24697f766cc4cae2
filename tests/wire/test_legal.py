"""Legal requests of every API at the edges of the limits hold nobody up; the check is shown to work."""

import time

from semel.embedded import embedded
from semel.handlers import served
from verification.legal import made, run
from verification.pauses import UNITS_MAX, Probe, calibrated_seconds

REQUESTS = 10
"""`make test` sends a hundred more in its verification."""


def test_no_legal_request_holds_the_event_loop_up() -> None:
    found = run(REQUESTS)
    assert found.failures == []
    assert found.requests == REQUESTS


def test_every_api_is_asked_and_the_same_seed_asks_the_same() -> None:
    asked = {made(seed)[0].api_key for seed in range(len(served()))}
    assert asked == {api.key for api in served()}
    assert made(7)[0].encode(made(7)[1]) == made(7)[0].encode(made(7)[1])


def test_a_loop_that_is_held_up_is_noticed() -> None:
    unit = calibrated_seconds()
    with embedded() as broker:
        assert broker._loop is not None
        probe = Probe(broker._loop)
        probe.longest_seconds()

        def hold_up() -> None:
            began = time.thread_time()
            while time.thread_time() - began < 1.5 * UNITS_MAX * unit:
                pass

        broker._loop.call_soon_threadsafe(hold_up)
        assert probe.longest_seconds() > UNITS_MAX * unit
        probe.end()
