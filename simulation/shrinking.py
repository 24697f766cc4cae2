"""Shrink a failing history: fewer actors, fewer kinds of faults, less time, as long as it still fails."""

from collections.abc import Callable, Iterator

from simulation.plan import Plan

TRIES_MAX = 200


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the smallest plan found that still fails."""
    tries = 0
    while True:
        for smaller in _smaller(plan):
            tries += 1
            if tries > TRIES_MAX:
                return plan
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.seconds > 0.1:
        yield plan.shorter()
    for at in range(len(plan.actors)):
        yield plan.without_actor(at)
    for kind in plan.odds:
        yield plan.without_fault(kind)
