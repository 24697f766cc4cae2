"""What a broker of a cluster tells clients about the others."""

from semel.broker.cluster.shard_ownership import LISTED_SECONDS, ShardOwnership
from semel.core.entities import SHARDS
from semel.store.cluster.contract import ClusterView, Peer, Shard

SHARDS_OF_1 = [Shard(1, 1)] * SHARDS


def view(*live: int) -> ClusterView:
    peers = [Peer(each, 1, {"x": ("host", each)}, ("host", 0), None, True, False) for each in live]
    return ClusterView(peers, SHARDS_OF_1, (), 0, 0)


def test_a_broker_that_has_gone_is_listed_for_a_while() -> None:
    """librdkafka drops what is not listed, and may wait for it forever (its issue 5511)."""
    now = [100.0]
    ownership = ShardOwnership(1, lambda: now[0])

    def listed() -> list[int]:
        return [each.node_id for each in ownership.listed()]

    ownership.update(view(1, 2, 3))
    assert listed() == [1, 2, 3]
    ownership.update(view(1, 3))
    assert listed() == [1, 2, 3]
    assert [each.node_id for each in ownership.nodes()] == [1, 3]
    assert ownership.node(2) is None
    # It comes back, and goes again.
    now[0] += LISTED_SECONDS - 1
    ownership.update(view(1, 2, 3))
    ownership.update(view(1, 3))
    now[0] += LISTED_SECONDS - 1
    ownership.update(view(1, 3))
    assert listed() == [1, 2, 3]
    changes = ownership.changes
    now[0] += 2
    ownership.update(view(1, 3))
    assert listed() == [1, 3]
    assert ownership.changes > changes, "answers that were kept have to be made again"


def test_a_broker_that_leads_nothing_any_more_is_not_named_as_a_leader() -> None:
    ownership = ShardOwnership(2, lambda: 100.0)
    ownership.update(view(1, 2))
    ownership.update(view(2))
    assert ownership.coordinator("name") == -1


def test_who_waits_is_woken_by_every_change() -> None:
    ownership = ShardOwnership(1, lambda: 100.0)
    seen: list[int] = []
    ownership.changed = lambda: seen.append(ownership.changes)
    ownership.update(view(1, 2))
    ownership.adopt([0, 1])
    ownership.release([1])
    ownership.moved({0: 2})
    assert seen == [1, 2, 3, 4]
    ownership.update(view(1, 2))
    assert len(seen) == 5, "the view, in which nothing has moved"
    ownership.update(view(1, 2))
    assert len(seen) == 5
