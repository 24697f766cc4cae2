"""The task that renews a broker's lease."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.cluster.member import ClusterMember


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
