"""The task that renews a broker's lease."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.cluster.member import LOOK_SECONDS, LOOK_SECONDS_MAX, LOOK_SHARE, ClusterMember


def test_the_renewals_end_also_if_another_broker_asks_for_a_look_at_that_moment() -> None:
    """Otherwise the broker would not stop: it waits for all of its tasks."""

    async def run() -> None:
        sender = SimpleNamespace(look_again=asyncio.Event())
        membership = SimpleNamespace(lease_seconds=3_600.0)
        unused = cast(Any, None)
        member = ClusterMember(
            cast(Any, membership), unused, cast(Any, sender), unused, unused, unused, unused
        )
        renewals = asyncio.create_task(member.run())
        for _ in range(3):
            await asyncio.sleep(0)
        sender.look_again.set()
        renewals.cancel()
        await asyncio.wait({renewals}, timeout=10.0)
        assert renewals.cancelled()

    asyncio.run(run())


def test_open_transactions_are_searched_for_a_hundredth_of_the_time() -> None:
    """With many transactional ids a search takes long, and the ledger serves commits meanwhile."""

    async def run() -> None:
        took = 0.01
        searches: list[float] = []
        now = 0.0

        async def look() -> float:
            searches.append(now)
            return took

        ownership = SimpleNamespace(clock=lambda: now)
        loop = SimpleNamespace(look_for_open_transactions=look)
        unused = cast(Any, None)
        member = ClusterMember(unused, cast(Any, ownership), unused, cast(Any, loop), unused, unused, unused)

        async def pass_time(seconds: int) -> None:
            nonlocal now
            for _ in range(seconds):
                now += 1.0
                member._start_looking()
                for _ in range(3):
                    await asyncio.sleep(0)

        await pass_time(100)
        assert len(searches) == 100 / LOOK_SECONDS
        took = 0.5
        searches.clear()
        await pass_time(300)
        assert 4 <= len(searches) <= 300 / (took * LOOK_SHARE) + 2
        # PostgreSQL was away for nine seconds.
        took = 9.0
        searches.clear()
        await pass_time(300)
        assert len(searches) >= 300 / LOOK_SECONDS_MAX - 1

    asyncio.run(run())
