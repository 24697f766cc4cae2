"""Short-lived producers on a network that delays, duplicates and loses the ends of their transactions."""

import random

from semel.check import Claim
from semel.client import Isolation, Partition
from support.faults.proxy import Act, Proxy, Rule, Seen
from support.workloads.clients import Sent
from support.workloads.running import Place, Producing, Reader, Workload

END = 26
PARTITIONS = 2
DELAYED = (Act.STRAND, Act.ECHO)
ACTS = (*DELAYED, Act.STRAND, Act.TWICE, Act.CUT, Act.CUT_ANSWER)
KINDS = ("raw-1", "raw-2", "raw-1", "raw-2", "raw-1", "raw-2", "own-1", "own", "own", "librdkafka")
"""Both generations of the protocol. Most have no library, because libraries wait between attempts."""
RELEASES = 0.5
LIVES = 10
"""Per proxy, because a proxy remembers every request."""


class Ends(Workload):
    """Producers that run one after another, and a reader."""

    def __init__(self, place: Place, name: str, chance: random.Random, visibility: str) -> None:
        super().__init__(place, {name: PARTITIONS}, visibility)
        self.topic = name
        self._rules: list[Rule] = []
        self._chance = chance
        self._ids: list[str] = []
        self._groups: list[str] = []
        self._late: list[Rule] = []
        self.workers = [Reader(self.place, self.partitions, Isolation.READ_COMMITTED)]

    @property
    def faults(self) -> int:
        """The number of faults that have met an EndTxn."""
        return sum(bool(rule.caught) for rule in self._rules)

    @property
    def transactional_ids(self) -> list[str]:
        return self._ids

    @property
    def groups(self) -> dict[str, list[Partition]]:
        return {group: [(self.topic, 0)] for group in self._groups}

    def lives(self, count: int = LIVES) -> None:
        """Run this many producers through one proxy."""
        with Proxy(self.place.bootstrap) as proxy:
            for _ in range(count):
                self._life(proxy)

    def _life(self, proxy: Proxy) -> None:
        name = f"{self.topic}-{len(self._ids)}"
        self._ids.append(name)
        kind = self._chance.choice(KINDS)
        has_group = kind != "librdkafka"  # librdkafka's offsets need a consumer
        if has_group:
            self._groups.append(name)
        producing = Producing(self.place._replace(bootstrap=proxy.bootstrap), kind, name)
        try:
            for number in range(self._chance.randrange(2, 6)):
                records = [Sent(self.topic, index, f"{name}/{number}") for index in range(PARTITIONS)]
                claims = [Claim(self.topic, 0, None, number + 1)]
                self._disturb(proxy, name)
                producing.transaction(
                    records,
                    is_commit=self._chance.random() < 0.6,
                    group=(name, name, claims) if has_group else None,
                    meanwhile=self._maybe_release,
                )
                self._maybe_release()
            while self._late:
                self._late.pop().release()
        finally:
            producing.close()

    def _disturb(self, proxy: Proxy, name: str) -> None:
        """Apply a random fault to the next EndTxn of this producer."""

        def is_its(seen: Seen) -> bool:
            return bool(seen.body.transactional_id == name)

        act = self._chance.choice(ACTS)
        rule = proxy.on(END, act, where=is_its)
        self._rules.append(rule)
        if act in DELAYED:
            self._late.append(rule)

    def _maybe_release(self) -> None:
        """Perhaps release requests that are held."""
        held = [rule for rule in self._late if rule.caught]
        self._chance.shuffle(held)
        for rule in held:
            if self._chance.random() < RELEASES:
                self._late.remove(rule)
                rule.release()
