"""Measures what clients have done recently, for each entity that shares a quota.

Meters read no clock: `now` is in seconds, of any steady clock. An idle meter measures the same as a new one,
so it can be dropped at any time. `throttling` decides how long clients wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from semel.core.security.quotas import Limit, QuotaEntity, Quotas

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
