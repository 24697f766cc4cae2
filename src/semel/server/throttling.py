"""Throttles clients: measures what they do, and computes how long a client over its quota must wait.

A client over its quota is answered at once, with `throttle_time_ms`, and not read from for that time
(KIP-219). If a request exceeds several quotas, the longest wait counts.

- *Bytes and time* are measured as in Kafka, as a sum over the last 11 windows of a second. The wait is the
  time after which the sum is within the quota again. So a client that was idle may send ten seconds' worth at
  once.
- *Fetch*: a response over the quota is sent without records and not counted; the client fetches again later.
- *Partitions* created and deleted take tokens from a bucket, which a large request may overdraw. While it is
  overdrawn, requests of newer versions are refused (THROTTLING_QUOTA_EXCEEDED) and older ones must wait.
- *Connections* over the rate of their address are closed after the wait, so that clients do not reconnect at
  once.

Without quotas, each of these costs one check. Only `ClientThrottle` and `Timed` read a clock, which is a
parameter. Quotas apply per broker, as in Kafka.

Meters measure what clients have done recently, for each entity that shares a quota. They read no clock: `now`
is in seconds, of any steady clock. An idle meter measures the same as a new one, so it can be dropped at any
time. `Timed` measures the time for which a request occupies the event loop, for request quotas.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from semel.core.security.acls import ANONYMOUS
from semel.core.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    QuotaEntity,
    Quotas,
)
from semel.wire.api_key import ApiKey
from semel.wire.messages import APIS
from semel.wire.schema import Encoded, Response


class Timed:
    """Awaits a coroutine, and measures its time on the event loop, without the time for which it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any], clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            started = self._clock()
            try:
                waited_for = step(value)
            except StopIteration as ended:
                return ended.value
            finally:
                self.seconds += self._clock() - started
            try:
                step, value = self._work.send, (yield waited_for)
            except BaseException as error:  # noqa: BLE001  passed on to the coroutine
                step, value = self._work.throw, error

    def close(self) -> None:
        """Close the coroutine."""
        self._work.close()


WINDOWS: Final = 11
WINDOW_SECONDS: Final = 1.0
"""Kafka's defaults of quota.window.num and quota.window.size.seconds."""
WHOLE_SECONDS: Final = WINDOWS * WINDOW_SECONDS
"""Amounts older than this do not count."""
BURST_SECONDS: Final = (WINDOWS - 1) * WINDOW_SECONDS
"""A client that was idle may use the quota of this time at once."""

METERS_MAX: Final = 10_000
"""The most entities of one kind of quota. At this number, the oldest tenth is dropped and starts anew."""


class Rate:
    """A sum over the last windows. A window begins with the first amount after the previous window's end."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def record(self, amount: float, now: float) -> None:
        """Count an amount."""
        samples = self._samples
        if not samples or now - samples[-1].start >= WINDOW_SECONDS:
            samples.append(_Sample(now))
        samples[-1].amount += amount
        samples[-1].last = now

    def total(self, now: float) -> float:
        """Return the sum of the amounts that count now."""
        samples = self._samples
        while samples and now - samples[0].last >= WHOLE_SECONDS:
            samples.popleft()
        return sum(each.amount for each in samples)

    def excess_seconds(self, limit: float, more: float, now: float) -> float:
        """Return the time until the rate is down to the limit, if `more` is counted now."""
        total = self.total(now) + more
        elapsed = now - self._samples[0].start if self._samples else 0.0
        missing = WINDOWS - 1 - int(elapsed // WINDOW_SECONDS)
        return total / limit - (elapsed + max(missing, 0) * WINDOW_SECONDS)

    def is_idle(self, now: float) -> bool:
        """Whether a new rate would measure the same."""
        return not self.total(now)


class _Sample:
    """One window."""

    __slots__ = ("amount", "last", "start")

    def __init__(self, start: float) -> None:
        self.start = self.last = start
        self.amount = 0.0


class TokenBucket:
    """Tokens that refill at the rate of the limit, up to those of 11 seconds. A new bucket is full."""

    __slots__ = ("_at", "_limit", "_tokens")

    def __init__(self) -> None:
        self._limit = 0.0
        self._tokens = float("inf")
        self._at = 0.0

    def tokens(self, limit: float, now: float) -> float:
        """Refill the bucket, and return its tokens; less than 0 if it is overdrawn."""
        self._limit = limit
        self._tokens = min(self._tokens + (now - self._at) * limit, WHOLE_SECONDS * limit)
        self._at = now
        return self._tokens

    def take(self, count: float) -> None:
        """Take tokens, which may overdraw the bucket. Call `tokens` first."""
        self._tokens -= count

    def is_idle(self, now: float) -> bool:
        """Whether the bucket is as full as a new one."""
        return self._tokens + (now - self._at) * self._limit >= WHOLE_SECONDS * self._limit


class _Meter(Protocol):
    def is_idle(self, now: float) -> bool:
        """Whether the meter can be dropped."""


M = TypeVar("M", bound=_Meter)


class Meters(Generic[M]):
    """The meters of one kind of quota, by the entity that shares a limit."""

    def __init__(
        self, quotas: Quotas, look_up: Callable[[str, str | None], Limit | None], make: Callable[[], M]
    ) -> None:
        """``look_up`` finds the limit of a client by the names that identify it."""
        self._quotas = quotas
        self._look_up = look_up
        self._make = make
        self._meters: dict[QuotaEntity, M] = {}
        self._known: dict[tuple[str, str | None], tuple[float, M] | None] = {}
        """Limits and meters that were looked up since quotas changed."""
        self._version = -1

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, name: str, client_id: str | None = None) -> tuple[float, M] | None:
        """Return the limit and the meter of a client; None if it is unlimited."""
        if self._version != self._quotas.version or len(self._known) >= METERS_MAX:
            self._version = self._quotas.version
            self._known.clear()
        place = (name, client_id)
        if place not in self._known:
            limit = self._look_up(name, client_id)
            self._known[place] = None if limit is None else (limit.value, self._meter(limit.shared_by))
        return self._known[place]

    def _meter(self, entity: QuotaEntity) -> M:
        meter = self._meters.get(entity)
        if meter is None:
            if len(self._meters) >= METERS_MAX:
                self._forget(list(self._meters)[: METERS_MAX // 10])
            meter = self._meters[entity] = self._make()
        return meter

    def tidy(self, now: float) -> None:
        """Drop idle meters."""
        self._forget([entity for entity, each in self._meters.items() if each.is_idle(now)])

    def _forget(self, entities: list[QuotaEntity]) -> None:
        for entity in entities:
            del self._meters[entity]
        # The cached entries may refer to dropped meters.
        self._known.clear()


SHORT_WAIT_MS: Final = 1_000
"""The longest wait for the time of requests and for connections: one window, as in Kafka."""
LONG_WAIT_MS: Final = 300_000
"""The longest wait for bytes and partitions. Kafka has no limit, because a shorter wait lets a client with
large requests exceed its quota. But a client muted for days by a wrong quota would stay muted when the quota
is corrected. Five minutes are less than the nine after which clients close an idle connection."""

THROTTLE_TIME: Final = "throttle_time_ms"
EXEMPT: Final = frozenset((ApiKey.SASL_HANDSHAKE, ApiKey.WRITE_TXN_MARKERS, ApiKey.SASL_AUTHENTICATE))
"""APIs exempt from the time quota: inter-broker requests, and authentication, which has no user yet."""


class Fetched(NamedTuple):
    """How to send a Fetch response."""

    throttle_ms: int
    has_records: bool
    """If False, send the response without records, and do not change the fetch session."""


class Mutated(NamedTuple):
    """Whether partitions may be created or deleted, and the wait."""

    throttle_ms: int
    is_allowed: bool
    """If False, respond with THROTTLING_QUOTA_EXCEEDED."""


class Throttling:
    """The quotas of all clients of one server. Times are in seconds, of any steady clock."""

    def __init__(self, quotas: Quotas, connections_per_user_max: int = 0) -> None:
        """With 0 as ``connections_per_user_max``, a user may have any number of connections."""
        self.quotas = quotas
        self.throttled: dict[str, int] = {}
        """How many requests and connections had to wait, by kind of quota."""
        self._rates = {
            kind: Meters(quotas, _limit_of(quotas, kind), Rate)
            for kind in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
        }
        self._arrivals = Meters(quotas, lambda host, _: quotas.connection_rate(host), Rate)
        self._buckets = Meters(quotas, _limit_of(quotas, CONTROLLER_MUTATION_RATE), TokenBucket)
        self._tidied_at = 0.0
        self._connections_max = connections_per_user_max
        self._connections: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of measured entities."""
        return len(self._buckets) + len(self._arrivals) + sum(map(len, self._rates.values()))

    def produced(self, principal: str, client_id: str | None, size: int, now: float) -> int:
        """Count a Produce request. Returns the milliseconds to wait."""
        if PRODUCER_BYTE_RATE not in self.quotas.kinds:
            return 0
        return self._counted(PRODUCER_BYTE_RATE, principal, client_id, size, LONG_WAIT_MS, now)

    def handled(self, principal: str, client_id: str | None, seconds: float, now: float) -> int:
        """Count the time for which a request occupied the broker. Returns the milliseconds to wait."""
        if REQUEST_PERCENTAGE not in self.quotas.kinds:
            return 0
        return self._counted(REQUEST_PERCENTAGE, principal, client_id, seconds * 100, SHORT_WAIT_MS, now)

    def fetched(self, principal: str, client_id: str | None, size: int, now: float) -> Fetched:
        """Count a Fetch response of this size, if it may be sent with its records.

        A response that is larger than the quota of ten seconds would never be within the quota. It is sent if
        nothing else was counted recently, and the client waits afterwards. In Kafka such a consumer is stuck.
        """
        found = self._rate(CONSUMER_BYTE_RATE, principal, client_id)
        if found is None:
            return Fetched(0, has_records=True)
        limit, rate = found
        throttle_ms = self._waits(CONSUMER_BYTE_RATE, rate.excess_seconds(limit, size, now), LONG_WAIT_MS)
        has_records = not throttle_ms or not rate.total(now)
        if has_records:
            rate.record(size, now)
        return Fetched(throttle_ms, has_records)

    def fetch_bytes_max(self, principal: str, client_id: str | None) -> int | None:
        """Return the most bytes that a Fetch response can have within the quota; None if unlimited."""
        found = self._rate(CONSUMER_BYTE_RATE, principal, client_id)
        return None if found is None else max(int(found[0] * BURST_SECONDS), 1)

    def mutations(
        self, principal: str, client_id: str | None, count: int, now: float, *, strict: bool
    ) -> Mutated:
        """Count partitions to create or delete. ``strict`` refuses them while the quota is exceeded."""
        kind = CONTROLLER_MUTATION_RATE
        if kind not in self.quotas.kinds:
            return Mutated(0, is_allowed=True)
        found = self._buckets.of(principal, client_id)
        if found is None:
            return Mutated(0, is_allowed=True)
        limit, bucket = found
        is_allowed = bucket.tokens(limit, now) >= 0 or not strict
        if is_allowed:
            bucket.take(count)
        if is_allowed and strict:
            return Mutated(0, is_allowed=True)
        overdrawn_seconds = -bucket.tokens(limit, now) / limit
        return Mutated(self._waits(kind, overdrawn_seconds, LONG_WAIT_MS), is_allowed)

    def may_connect(self, host: str, now: float) -> int:
        """Count a new connection. Returns after how many milliseconds to close it; 0 if within the quota."""
        kind = CONNECTION_CREATION_RATE
        if kind not in self.quotas.kinds:
            return 0
        found = self._arrivals.of(host)
        if found is None:
            return 0
        limit, rate = found
        throttle_ms = self._waits(kind, rate.excess_seconds(limit, 1, now), SHORT_WAIT_MS)
        if not throttle_ms:
            rate.record(1, now)
        return throttle_ms

    def connected(self, principal: str) -> bool:
        """Count a connection of a user. Returns False, and does not count it, if there are too many."""
        count = self._connections.get(principal, 0)
        if self._connections_max and count >= self._connections_max:
            return False
        self._connections[principal] = count + 1
        return True

    def disconnected(self, principal: str) -> None:
        """Stop counting a closed connection of a user."""
        self._connections[principal] -= 1
        if not self._connections[principal]:
            del self._connections[principal]

    def tidy(self, now: float) -> None:
        """Drop the meters of idle clients. May be called often."""
        if now - self._tidied_at < WHOLE_SECONDS:
            return
        self._tidied_at = now
        self._buckets.tidy(now)
        self._arrivals.tidy(now)
        for meters in self._rates.values():
            meters.tidy(now)

    def _rate(self, kind: str, principal: str, client_id: str | None) -> tuple[float, Rate] | None:
        return self._rates[kind].of(principal, client_id) if kind in self.quotas.kinds else None

    def _counted(
        self, kind: str, principal: str, client_id: str | None, amount: float, longest_ms: int, now: float
    ) -> int:
        found = self._rate(kind, principal, client_id)
        if found is None:
            return 0
        limit, rate = found
        rate.record(amount, now)
        return self._waits(kind, rate.excess_seconds(limit, 0, now), longest_ms)

    def _waits(self, kind: str, seconds: float, longest_ms: int) -> int:
        throttle_ms = round(min(max(seconds * 1000, 0), longest_ms))
        if throttle_ms:
            self.throttled[kind] = self.throttled.get(kind, 0) + 1
        return throttle_ms


def _limit_of(quotas: Quotas, kind: str) -> Callable[[str, str | None], Limit | None]:
    """Return the lookup of a client's limit. Quotas name a user without the type of the principal."""
    return lambda principal, client_id: quotas.limit(kind, principal.removeprefix("User:"), client_id)


class ClientThrottle:
    """The quotas of one connection: its handlers count what they do, and its responses report the wait.

    Only one request at a time adds to the wait, except Produce requests, whose wait applies to all requests
    after them. So there is one wait per connection, and the longest counts.
    """

    __slots__ = ("_clock", "_throttling", "_until", "client_id", "principal")

    def __init__(self, throttling: Throttling, clock: Callable[[], float]) -> None:
        self._throttling = throttling
        self._clock = clock
        self._until = 0.0
        self.principal = ANONYMOUS
        self.client_id: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there are no quotas at all. If so, the other methods need not be called."""
        return not self._throttling.quotas.kinds

    @property
    def counts_time(self) -> bool:
        """Whether the time of requests is limited."""
        return REQUEST_PERCENTAGE in self._throttling.quotas.kinds

    def produced(self, size: int) -> None:
        """Count a Produce request."""
        now = self._clock()
        self._wait(self._throttling.produced(self.principal, self.client_id, size, now), now)

    def fetch_bytes_max(self) -> int | None:
        """Return the number of bytes to limit a Fetch to; None if unlimited."""
        return self._throttling.fetch_bytes_max(self.principal, self.client_id)

    def may_send(self, size: int) -> bool:
        """Count a Fetch response. Returns whether it may have its records; if not, they are not counted."""
        now = self._clock()
        throttle_ms, has_records = self._throttling.fetched(self.principal, self.client_id, size, now)
        self._wait(throttle_ms, now)
        return has_records

    def may_change(self, partitions: int, *, strict: bool) -> bool:
        """Count partitions to create or delete. Returns False to respond THROTTLING_QUOTA_EXCEEDED."""
        now = self._clock()
        throttle_ms, is_allowed = self._throttling.mutations(
            self.principal, self.client_id, partitions, now, strict=strict
        )
        self._wait(throttle_ms, now)
        return is_allowed

    def answered(self, seconds: float) -> int:
        """Count the time of a request whose response is sent now. Returns its throttle_time_ms."""
        now = self._clock()
        if seconds:
            self._wait(self._throttling.handled(self.principal, self.client_id, seconds, now), now)
        return max(round((self._until - now) * 1000), 0)

    def _wait(self, throttle_ms: int, now: float) -> None:
        self._until = max(self._until, now + throttle_ms / 1000)


def with_throttle_time(response: Response, version: int, throttle_ms: int) -> Response:
    """Return the response with throttle_time_ms, if this version has the field.

    A response that is already encoded may be shared with other clients, so it is copied and not changed. If
    the field is not its first one (Produce with very many partitions), the response does not report the wait.
    """
    kind = APIS[response.api_key].response
    field = kind.declared.get(THROTTLE_TIME)
    if field is None or version not in field.versions:
        return response
    if not isinstance(response, Encoded):
        setattr(response, THROTTLE_TIME, throttle_ms)
        return response
    if next(iter(kind.declared)) != THROTTLE_TIME:
        return response
    body = memoryview(b"".join(response.encode_parts(version)))
    return Encoded(kind, [throttle_ms.to_bytes(4, "big"), body[4:]])
