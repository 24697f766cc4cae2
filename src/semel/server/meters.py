"""Meters: how much clients have done lately, by the entity that shares a quota.

They know no clock: `now` is in seconds, of any steady clock. A meter that measures nothing any more is like a
new one, so it can be forgotten at any time. `throttling` decides what follows from them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from semel.core.security.quotas import Limit, QuotaEntity, Quotas

WINDOWS: Final = 11
WINDOW_SECONDS: Final = 1.0
"""Kafka's defaults of quota.window.num and quota.window.size.seconds."""
WHOLE_SECONDS: Final = WINDOWS * WINDOW_SECONDS
"""What is older does not count."""
BURST_SECONDS: Final = (WINDOWS - 1) * WINDOW_SECONDS
"""Whoever was silent may use up the quota of this time at once."""

METERS_MAX: Final = 10_000
"""Entities measured for one kind of quota. Over it, the oldest tenth is forgotten and starts anew."""


class Rate:
    """A sum over the last windows. A window begins with the first amount after the end of the one before."""

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
        """The amount that counts now."""
        samples = self._samples
        while samples and now - samples[0].last >= WHOLE_SECONDS:
            samples.popleft()
        return sum(each.amount for each in samples)

    def excess_seconds(self, limit: float, more: float, now: float) -> float:
        """How long to wait until the rate is down to the limit, if this much more is counted."""
        total = self.total(now) + more
        elapsed = now - self._samples[0].start if self._samples else 0.0
        missing = WINDOWS - 1 - int(elapsed // WINDOW_SECONDS)
        return total / limit - (elapsed + max(missing, 0) * WINDOW_SECONDS)

    def is_idle(self, now: float) -> bool:
        """Whether a new one would measure the same."""
        return not self.total(now)


class _Sample:
    """One window."""

    __slots__ = ("amount", "last", "start")

    def __init__(self, start: float) -> None:
        self.start = self.last = start
        self.amount = 0.0


class TokenBucket:
    """Tokens that come back at the rate of the limit, up to those of 11 seconds. It starts full."""

    __slots__ = ("_at", "_limit", "_tokens")

    def __init__(self) -> None:
        self._limit = 0.0
        self._tokens = float("inf")
        self._at = 0.0

    def tokens(self, limit: float, now: float) -> float:
        """The tokens that there are now; less than 0 if it is overdrawn."""
        self._limit = limit
        self._tokens = min(self._tokens + (now - self._at) * limit, WHOLE_SECONDS * limit)
        self._at = now
        return self._tokens

    def take(self, count: float) -> None:
        """Take tokens, whether there are enough or not. Call `tokens` before."""
        self._tokens -= count

    def is_idle(self, now: float) -> bool:
        """Whether a new one would be as full."""
        return self._tokens + (now - self._at) * self._limit >= WHOLE_SECONDS * self._limit


class _Meter(Protocol):
    def is_idle(self, now: float) -> bool:
        """Whether it can be forgotten."""


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
        """The limit and the meter of a client. None: unlimited."""
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
        """Forget idle meters."""
        self._forget([entity for entity, each in self._meters.items() if each.is_idle(now)])

    def _forget(self, entities: list[QuotaEntity]) -> None:
        for entity in entities:
            del self._meters[entity]
        # It may refer to forgotten ones.
        self._known.clear()
