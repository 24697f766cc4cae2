"""Throttling in simulated time: rates converge to quotas, clients share them, idle ones are forgotten."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

import pytest

from semel.core.security.quotas import DEFAULT, Quota, QuotaEntity, Quotas
from semel.server import throttling as module
from semel.server.throttling import (
    LONG_WAIT_MS,
    SHORT_WAIT_MS,
    ClientThrottle,
    Mutated,
    Rate,
    Throttling,
    Timed,
    with_throttle_time,
)
from semel.wire.messages import APIS
from semel.wire.schema import Encoded

ALICE = "User:alice"
MIB = 1 << 20
START = 1_000.0


def throttling(entity: QuotaEntity | None = None, **limits: float) -> Throttling:
    return Throttling(Quotas([Quota(entity or QuotaEntity("alice"), limits)] if limits else []))


def sent_in(seconds: float, clients: list[Callable[[float], tuple[float, float]]]) -> float:
    """Each client does something and waits, again and again. Returns the sum of what all have done."""
    done = 0.0
    queue = [(START, at) for at in range(len(clients))]
    while queue[0][0] < START + seconds:
        now, at = heapq.heappop(queue)
        amount, wait = clients[at](now)
        done += amount
        heapq.heappush(queue, (now + wait, at))
    return done


def producer(
    quotas: Throttling, size: int, *, principal: str = ALICE, client_id: str = "app", pause: float = 0.001
) -> Callable[[float], tuple[float, float]]:
    def send(now: float) -> tuple[float, float]:
        return size, max(quotas.produced(principal, client_id, size, now) / 1000, pause)

    return send


# -- rates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10_000, 100_000, MIB, 5 * MIB, 10 * MIB])
def test_a_producer_gets_its_quota_whatever_the_size_of_its_requests(size: int) -> None:
    seconds = 1_000
    sent = sent_in(seconds, [producer(throttling(producer_byte_rate=MIB), size)])
    assert sent / MIB == pytest.approx(seconds, rel=0.03)


def test_a_request_of_more_than_the_windows_has_ten_seconds_for_free_each_time() -> None:
    """As in Kafka: when the wait is over, the windows are empty again."""
    sent = sent_in(1_000, [producer(throttling(producer_byte_rate=MIB), 30 * MIB)])
    assert sent / MIB == pytest.approx(1_500, rel=0.01)


def test_a_producer_below_its_quota_is_never_throttled() -> None:
    quotas = throttling(producer_byte_rate=MIB)
    sent = sent_in(100, [producer(quotas, MIB // 10, pause=0.101)])
    assert sent / MIB == pytest.approx(99, abs=1)
    assert quotas.throttled == {}


def test_a_burst_of_ten_seconds_is_free_and_no_more() -> None:
    quotas = throttling(producer_byte_rate=MIB)
    assert quotas.produced(ALICE, "app", 10 * MIB, START) == 0
    assert quotas.produced(ALICE, "app", 2 * MIB, START) == 2_000
    assert quotas.throttled == {"producer_byte_rate": 1}
    quiet = START + 11
    assert quotas.produced(ALICE, "app", 10 * MIB, quiet) == 0


def test_connections_and_clients_share_the_quota_of_their_user() -> None:
    quotas = throttling(producer_byte_rate=MIB)
    clients = [producer(quotas, 50_000, client_id=f"app-{each}") for each in range(5)]
    assert sent_in(600, clients) / MIB == pytest.approx(600, rel=0.05)
    assert len(quotas) == 1
    assert quotas.produced("User:bob", "app", 1_000 * MIB, START) == 0


def test_a_default_is_for_each_and_not_for_all_together() -> None:
    quotas = throttling(QuotaEntity(DEFAULT, DEFAULT), producer_byte_rate=MIB)
    clients = [producer(quotas, 50_000, client_id=f"app-{each}") for each in range(3)]
    assert sent_in(300, clients) / MIB == pytest.approx(900, rel=0.06)
    assert len(quotas) == 3


def test_a_changed_quota_counts_from_the_next_request_on() -> None:
    quotas = throttling(producer_byte_rate=MIB)
    assert quotas.produced(ALICE, "app", 20 * MIB, START) == 10_000
    quotas.quotas.set(QuotaEntity("alice"), "producer_byte_rate", 2 * MIB)
    assert quotas.produced(ALICE, "app", 0, START) == 0
    quotas.quotas.set(QuotaEntity("alice", "app"), "producer_byte_rate", 1)
    assert quotas.produced(ALICE, "app", 10 * MIB, START) == LONG_WAIT_MS
    quotas.quotas.remove(QuotaEntity("alice", "app"))
    quotas.quotas.remove(QuotaEntity("alice"))
    assert quotas.produced(ALICE, "app", 1_000 * MIB, START) == 0


def test_the_time_of_requests_is_limited_in_percent_of_a_core() -> None:
    quotas = throttling(request_percentage=10)

    def client(now: float) -> tuple[float, float]:
        return 0.01, 0.01 + quotas.handled(ALICE, "app", 0.01, now) / 1000

    assert sent_in(600, [client]) == pytest.approx(60, rel=0.05)
    assert quotas.handled(ALICE, "app", 100, START + 600) == SHORT_WAIT_MS


def test_windows_are_measured_as_in_kafka() -> None:
    rate = Rate()
    rate.record(11, 0.0)
    assert rate.excess_seconds(1, 0, 0.0) == pytest.approx(1), "at least ten windows"
    assert rate.excess_seconds(1, 0, 0.5) == pytest.approx(0.5), "and the fraction of the last one"
    assert rate.excess_seconds(1, 0, 1.0) == pytest.approx(1), "a whole one is one of the ten"
    rate.record(1, 10.5)
    assert rate.excess_seconds(1, 0, 10.5) == pytest.approx(1.5)
    assert rate.total(10.99) == 12
    assert rate.total(11.0) == 1, "a window ends 11 seconds after its last amount"
    assert not rate.is_idle(21.4)
    assert rate.is_idle(21.5)


# -- Fetch ------------------------------------------------------------------------------------------------


def test_a_consumer_gets_its_quota_and_empty_responses_in_between() -> None:
    quotas = throttling(consumer_byte_rate=MIB)

    def consumer(now: float) -> tuple[float, float]:
        throttle_ms, has_records = quotas.fetched(ALICE, "app", 500_000, now)
        assert has_records == (throttle_ms == 0)
        return 500_000 * has_records, max(throttle_ms / 1000, 0.001)

    assert sent_in(600, [consumer]) / MIB == pytest.approx(600, rel=0.05)
    assert quotas.throttled["consumer_byte_rate"] > 100


def test_what_is_not_sent_is_not_counted() -> None:
    quotas = throttling(consumer_byte_rate=1_000)
    assert quotas.fetch_bytes_max(ALICE, "app") == 10_000
    assert quotas.fetched(ALICE, "app", 10_000, START) == (0, True)
    for _ in range(3):
        assert quotas.fetched(ALICE, "app", 500, START) == (500, False)
    assert quotas.fetched(ALICE, "app", 500, START + 0.5) == (0, True)


def test_a_batch_that_is_larger_than_the_quota_arrives_all_the_same() -> None:
    quotas = throttling(consumer_byte_rate=1_000)
    assert quotas.fetched(ALICE, "app", 1, START) == (0, True)
    assert quotas.fetched(ALICE, "app", 50_000, START).has_records is False
    assert quotas.fetched(ALICE, "app", 50_000, START + 11) == (40_000, True)
    assert quotas.fetched(ALICE, "app", 50_000, START + 12).has_records is False


# -- partitions -------------------------------------------------------------------------------------------


def test_newer_versions_are_refused_while_the_bucket_is_overdrawn() -> None:
    quotas = throttling(controller_mutation_rate=2)
    assert quotas.mutations(ALICE, "app", 22, START, strict=True) == Mutated(0, is_allowed=True)
    assert quotas.mutations(ALICE, "app", 10, START, strict=True) == Mutated(0, is_allowed=True)
    assert quotas.mutations(ALICE, "app", 1, START, strict=True) == Mutated(5_000, is_allowed=False)
    assert quotas.mutations(ALICE, "app", 1, START + 4, strict=True) == Mutated(1_000, is_allowed=False)
    assert quotas.mutations(ALICE, "app", 1, START + 5, strict=True) == Mutated(0, is_allowed=True)


def test_older_versions_are_allowed_and_wait() -> None:
    quotas = throttling(controller_mutation_rate=2)
    assert quotas.mutations(ALICE, "app", 22, START, strict=False) == Mutated(0, is_allowed=True)
    assert quotas.mutations(ALICE, "app", 10, START, strict=False) == Mutated(5_000, is_allowed=True)
    assert quotas.mutations(ALICE, "app", 10, START, strict=False) == Mutated(10_000, is_allowed=True)


@pytest.mark.parametrize("strict", [True, False])
def test_partitions_converge_to_the_quota(strict: bool) -> None:
    quotas = throttling(controller_mutation_rate=5)

    def admin(now: float) -> tuple[float, float]:
        throttle_ms, is_allowed = quotas.mutations(ALICE, "app", 7, now, strict=strict)
        return 7 * is_allowed, max(throttle_ms / 1000, 0.01)

    assert sent_in(1_000, [admin]) == pytest.approx(5_000, rel=0.02)


# -- connections ------------------------------------------------------------------------------------------


def test_connections_over_the_rate_of_an_address_are_delayed_and_not_counted() -> None:
    quotas = throttling(QuotaEntity(ip=DEFAULT), connection_creation_rate=2)
    assert [quotas.may_connect("10.0.0.1", START) for _ in range(21)] == [0] * 20 + [500]
    assert quotas.may_connect("10.0.0.1", START) == 500
    assert quotas.may_connect("10.0.0.2", START) == 0
    quotas.quotas.set(QuotaEntity(ip="10.0.0.1"), "connection_creation_rate", 1)
    assert quotas.may_connect("::ffff:10.0.0.1", START) == SHORT_WAIT_MS


def test_connections_of_a_user_are_counted() -> None:
    quotas = Throttling(Quotas(), connections_per_user_max=2)
    assert [quotas.connected(ALICE) for _ in range(3)] == [True, True, False]
    assert quotas.connected("User:bob")
    quotas.disconnected(ALICE)
    assert [quotas.connected(ALICE) for _ in range(2)] == [True, False]
    for each in (ALICE, ALICE, "User:bob"):
        quotas.disconnected(each)
    assert quotas._connections == {}
    unlimited = Throttling(Quotas())
    assert all(unlimited.connected(ALICE) for _ in range(1_000))


# -- memory -----------------------------------------------------------------------------------------------


def everything(quotas: Throttling, client_id: str, now: float) -> None:
    quotas.produced(ALICE, client_id, 1, now)
    quotas.fetched(ALICE, client_id, 1, now)
    quotas.handled(ALICE, client_id, 1, now)
    quotas.mutations(ALICE, client_id, 1, now, strict=False)
    quotas.may_connect(client_id, now)


ALL_LIMITS = {
    "producer_byte_rate": 9,
    "consumer_byte_rate": 9,
    "request_percentage": 9,
    "controller_mutation_rate": 9,
}


def test_idle_clients_are_forgotten() -> None:
    quotas = throttling(QuotaEntity(None, DEFAULT), **ALL_LIMITS)
    quotas.quotas.set(QuotaEntity(ip=DEFAULT), "connection_creation_rate", 9)
    for each in range(10):
        everything(quotas, f"app-{each}", START)
    assert len(quotas) == 50
    everything(quotas, "app-0", START + 10)
    quotas.tidy(START + 10.9)
    assert len(quotas) == 40, "the buckets are full again"
    everything(quotas, "app-0", START + 21)
    quotas.tidy(START + 21.8)
    assert len(quotas) == 41, "it is done once in 11 seconds"
    quotas.tidy(START + 21.9)
    assert len(quotas) == 4, "one client is left"
    quotas.quotas.remove(QuotaEntity(None, DEFAULT))
    quotas.quotas.remove(QuotaEntity(ip=DEFAULT))
    quotas.tidy(START + 40)
    assert len(quotas) == 0


def test_a_client_in_debt_is_not_forgotten() -> None:
    quotas = throttling(controller_mutation_rate=1)
    quotas.mutations(ALICE, "app", 111, START, strict=True)
    quotas.tidy(START + 60)
    assert quotas.mutations(ALICE, "app", 1, START + 60, strict=True) == Mutated(40_000, is_allowed=False)


def test_many_client_ids_do_not_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METERS_MAX", 100)
    quotas = throttling(QuotaEntity(None, DEFAULT), producer_byte_rate=MIB)
    for each in range(1_000):
        quotas.produced(ALICE, f"app-{each}", 1, START)
    assert len(quotas) <= 100
    for each in range(1_000):
        quotas.produced(f"User:{each}", "app-999", MIB, START)
    assert len(quotas) <= 100, "users who share a client id share its meter"


def test_nothing_is_measured_without_quotas() -> None:
    quotas = throttling()
    everything(quotas, "app", START)
    client = ClientThrottle(quotas, lambda: START)
    client.produced(1_000 * MIB)
    assert client.may_send(1_000 * MIB)
    assert client.may_change(1_000, strict=True)
    assert client.fetch_bytes_max() is None
    assert (client.is_idle, client.answered(100.0), len(quotas)) == (True, 0, 0)


# -- one connection ---------------------------------------------------------------------------------------


def test_of_several_waits_the_longest_counts_and_it_ends() -> None:
    quotas = throttling(producer_byte_rate=MIB, controller_mutation_rate=1, request_percentage=1)
    now = START
    client = ClientThrottle(quotas, lambda: now)
    client.principal, client.client_id = ALICE, "app"
    client.produced(13 * MIB)
    assert client.may_change(12, strict=False)
    assert not client.is_idle
    assert client.answered(0) == 3_000
    now += 1
    assert client.answered(1.0) == 2_000, "the time is over its quota too, but that wait is shorter"
    now += 2
    assert client.answered(0) == 0


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_responses_tell_the_wait_in_every_version_that_can(api: Any) -> None:
    for version in range(api.min_version, api.max_version + 1):
        field = api.response.declared.get("throttle_time_ms")
        expected = 1234 if field is not None and version in field.versions else 0
        answer = with_throttle_time(api.response(), version, 1234)
        decoded = api.response.decode(b"".join(answer.encode_parts(version)), version)
        assert getattr(decoded, "throttle_time_ms", 0) == expected
        shared = Encoded(api.response, api.response().encode_parts(version))
        before = b"".join(shared.encode_parts(version))
        answer = with_throttle_time(shared, version, 1234)
        decoded = api.response.decode(b"".join(answer.encode_parts(version)), version)
        is_first = next(iter(api.response.declared)) == "throttle_time_ms"
        assert getattr(decoded, "throttle_time_ms", 0) == (expected if is_first else 0)
        assert b"".join(shared.encode_parts(version)) == before


async def test_only_the_time_on_the_event_loop_is_measured() -> None:
    ticks = 0.0

    def clock() -> float:
        return ticks

    async def work(steps: int) -> str:
        nonlocal ticks
        for _ in range(steps):
            ticks += 1
            before = ticks
            await asyncio.sleep(0)
            assert ticks == before + 100
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ticks += 1
            return "cancelled"
        return "not cancelled"

    timed = Timed(work(3), clock)

    async def wait() -> str:
        result: str = await timed
        return result

    task = asyncio.create_task(wait())
    for _ in range(4):
        await asyncio.sleep(0)
        ticks += 100
    task.cancel()
    assert await task == "cancelled"
    assert timed.seconds == 4

    async def fail() -> None:
        raise ValueError("as the coroutine")

    with pytest.raises(ValueError, match="coroutine"):
        await Timed(fail(), clock)
    Timed(fail(), clock).close()
