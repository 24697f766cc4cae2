"""The plan of one history: its actors, its faults, and settings that make rare boundary cases common.

All of it is drawn from the seed, and all of it is data, so a failing history can be shrunk.
"""

from dataclasses import dataclass, replace
from random import Random

from simulation.faults import Faults, draw

SEQUENCE_END = 2**31 - 3
OTHER_REASONS = frozenset(
    {
        "lost power",
        "broken flush",
        "killed while starting",
        "clock jump",
        "held request",
        "repeated request",
    }
)
"""Faults that fence without another producer: lost work, clock jumps, a delayed InitProducerId."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of one history."""

    seed: int
    brokers: int
    odds: dict[str, float]
    flush_seconds_max: float
    seconds: float
    """The virtual time with faults."""
    actors: tuple[str, ...]
    written: tuple[str, ...]
    """The topics that writers write to."""
    epoch_max: int
    first_sequence: int
    timeout_ms: int
    entities_max: int
    defers_sync: bool
    transaction_version: int

    @property
    def fences_for_a_reason(self) -> bool:
        """Whether only another producer or the timeout may fence a producer."""
        return self.brokers == 1 and not self.odds.keys() & OTHER_REASONS

    @property
    def has_workers(self) -> bool:
        """Whether jobs are done by the workers of a share group."""
        return "worker" in self.actors

    def faults(self) -> Faults:
        """Return a fresh set of faults."""
        return Faults(dict(self.odds), self.flush_seconds_max)

    def without_actor(self, at: int) -> "Plan":
        """Return a copy without one actor."""
        return replace(self, actors=self.actors[:at] + self.actors[at + 1 :])

    def without_fault(self, kind: str) -> "Plan":
        """Return a copy without this kind of fault."""
        return replace(self, odds={each: odds for each, odds in self.odds.items() if each != kind})

    def shorter(self) -> "Plan":
        """Return a copy with less time."""
        return replace(self, seconds=self.seconds / 2)


JOBS, RESULTS = "input", "output"
"""The topics of workers."""
RESTLESS = {"stopped broker": 0.3, "joined broker": 0.3, "lost notice": 0.4, "killed broker": 0.0}
"""Shards move all the time, and brokers do not know at once where they are."""
ISOLATED = {"cut from ledger": 0.2, "paused broker": 0.2, "killed broker": 0.0, "stopped broker": 0.0}
"""Leases end all the time, while clients can reach the brokers."""
WRITERS = ("first", "first", "first", "second", "second", "second", "twin first", "twin second")
"""Transactional writers by generation; twins share their transactional id and fence each other."""


def make(seed: int, brokers: int = 1) -> Plan:
    """Return the plan of a seed."""
    return _drawn(Random(f"plan {seed}" if brokers == 1 else f"plan {seed} of {brokers}"), seed, brokers)


def make_queue(seed: int, brokers: int = 1) -> Plan:
    """Return the plan of a history in which the workers of a share group divide jobs."""
    random = Random(f"queue {seed} of {brokers}")
    workers = ["worker"] * random.randint(2, 4)
    writers = random.choices(("idempotent", "first", "second"), k=random.randint(1, 2))
    return replace(
        _drawn(random, seed, brokers),
        actors=(*writers, *workers, "committed reader"),
        written=(JOBS,),
        # This also bounds the partitions of all share sessions.
        entities_max=random.choice((40, 64, 10_000)),
        # Only transactions of this version can contain acknowledgements.
        transaction_version=2,
    )


def _drawn(random: Random, seed: int, brokers: int) -> Plan:
    faults = draw(random, brokers=brokers)
    if random.random() < 0.2:
        # A calmer history, in which only another producer or the timeout fences a producer.
        faults.odds = {kind: odds for kind, odds in faults.odds.items() if kind not in OTHER_REASONS}
        faults.odds["lost response"] = 0.12
    if brokers > 1:
        faults.odds |= random.choice((RESTLESS, ISOLATED, {}, {}))
    if random.random() < 0.3:
        # Mostly copiers, with pauses long enough that the group considers them dead.
        faults.odds["paused client"] = 0.08
        actors = [random.choice(WRITERS), "idempotent", *_copiers(random, 3), "committed reader"]
        written: tuple[str, ...] = ("input",)
    else:
        actors = _of_all_kinds(random)
        written = ("marked", "staged", "input")
    return Plan(
        seed=seed,
        brokers=brokers,
        odds={kind: odds for kind, odds in faults.odds.items() if odds},
        flush_seconds_max=faults.flush_seconds_max,
        seconds=random.uniform(0.5, 1.7) if brokers == 1 else random.uniform(0.8, 2.5),
        actors=tuple(actors),
        written=written,
        epoch_max=random.choice((3, 3, 32_767)),
        first_sequence=random.choice((0, 0, SEQUENCE_END)),
        timeout_ms=random.choice((250, 800, 5_000)),
        entities_max=random.choice((4, 64, 10_000)),
        defers_sync=random.random() < 0.8,
        transaction_version=random.choice((2, 2, 1)),
    )


def _of_all_kinds(random: Random) -> list[str]:
    actors = [random.choice(WRITERS) for _ in range(random.randint(1, 3))]
    if random.random() < 0.4:
        actors += _copiers(random, 2)
    actors += ["idempotent"] * random.randint(0, 2)
    actors += ["plain"] * random.randint(0, 1)
    actors += ["committed reader", "uncommitted reader"]
    actors += ["administrator"] * random.randint(0, 1)
    return actors


def _copiers(random: Random, count: int) -> list[str]:
    return random.choices(("copier first", "copier second"), k=count)
