"""When a broker knows that the lease of another one is over."""

import random

from support.chance import fresh_seed

from semel.store.cluster.membership import Leases

LEASE = 3.0


class Turned:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_lease_is_over_a_whole_lease_after_its_last_renewal_was_seen() -> None:
    clock = Turned()
    leases = Leases(clock)
    assert leases.over(1, 1, clock()) is None, "nothing is known of it"
    leases.saw(1, 1, 7, LEASE)
    clock.seconds += LEASE - 0.1
    leases.saw(1, 1, 7, LEASE)
    assert leases.over(1, 1, clock()) is None
    clock.seconds += 0.1
    assert leases.over(1, 1, clock()) == 7
    assert leases.over(1, 2, clock()) is None, "another process has its place"
    leases.saw(1, 1, 8, LEASE)
    assert leases.over(1, 1, clock()) is None


def test_an_answer_that_this_process_slept_over_is_old() -> None:
    """It was paused between the question and the answer, so there may be renewals that the answer lacks."""
    clock = Turned()
    leases = Leases(clock)
    leases.saw(1, 1, 7, LEASE)
    asked_at = clock()
    clock.seconds += 10 * LEASE
    leases.saw(1, 1, 7, LEASE)
    assert leases.over(1, 1, asked_at) is None


def test_no_lease_is_over_that_its_owner_counts_on() -> None:
    """Questions and answers, of the owner and of the broker that watches it, take any time."""
    chance = random.Random(fresh_seed())
    clock = Turned()
    leases = Leases(clock)
    number, serves_until, how_often_over = 0, clock() + LEASE, 0

    def renew() -> None:
        nonlocal number, serves_until
        sent_at = clock()
        clock.seconds += chance.choice((0.0, 0.1, 2.0))
        number += 1
        serves_until = sent_at + LEASE

    for _ in range(20_000):
        clock.seconds += chance.choice((0.1, 1.0))
        if chance.random() < 0.3:
            renew()
            continue
        asked_at, served_until, told = clock(), serves_until, number
        if chance.random() < 0.3:
            renew()
        clock.seconds += chance.choice((0.0, 0.1, 5.0))
        leases.saw(1, 1, told, LEASE)
        if leases.over(1, 1, asked_at) is not None:
            how_often_over += 1
            assert asked_at >= served_until
    assert how_often_over > 100, "the test can tell"
