"""Runs and kills the brokers of a pipeline: one on a data directory, or three over PostgreSQL."""

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.brokers.cluster import LEASE_SECONDS, Cluster, Member, running
from support.brokers.process import BrokerProcess

WITHOUT_EXTENSIONS: Final = ("--set", "semel.extensions.enable=false")


class Brokers(Protocol):
    """Brokers that can be killed, and are started again."""

    victims: tuple[str, ...]
    """The processes that may be killed; one that is named twice is killed twice as often."""
    commits_once: bool
    """Whether a batch and the offsets of its input are always committed together."""

    @property
    def bootstrap(self) -> str:
        """The address, or the addresses."""

    def kill(self, chance: random.Random) -> None:
        """Send SIGKILL."""

    def supervise(self, chance: random.Random) -> None:
        """Start brokers that have ended, when it is time."""


class Alone:
    """One broker. It restarts with or without Semel's extensions of the protocol."""

    victims: tuple[str, ...] = ("broker", "driver", "JVM", "Python worker", "Python worker")
    # Without the extensions, a batch is committed by several requests.
    commits_once = False

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._options = tuple(process.options)

    @property
    def bootstrap(self) -> str:
        """The address of the broker."""
        return self._process.bootstrap

    def kill(self, chance: random.Random) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def supervise(self, chance: random.Random) -> None:
        """Start the broker if it was killed."""
        if self._process.process is None:
            self._process.options = (*self._options, *chance.choice([(), WITHOUT_EXTENSIONS]))
            self._process.start()


class Three:
    """Three brokers. A kill hits one of them, sometimes two or all."""

    victims: tuple[str, ...] = ("broker",)
    commits_once = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._away: dict[Member, float] = {}
        """The brokers that were killed, and when each comes back."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return self._cluster.bootstrap

    def kill(self, chance: random.Random) -> None:
        """Send SIGKILL to some of the running brokers."""
        run = [each for each in self._cluster.brokers if each not in self._away]
        victims = chance.sample(run, min(len(run), chance.choice([1, 1, 1, 1, 2, 3])))
        # The lease of a killed broker may or may not expire before it comes back.
        back_at = time.monotonic() + chance.choice([0, 0, LEASE_SECONDS + 1])
        for each in victims:
            each.kill()
            self._away[each] = back_at

    def supervise(self, chance: random.Random) -> None:
        """Start killed brokers that are due, and brokers that ended because they were replaced."""
        self._cluster.mend()
        back = [each for each, back_at in self._away.items() if time.monotonic() >= back_at]
        for each in back:
            each.launch()
        for each in back:
            each.wait_until_ready()
            del self._away[each]


@contextmanager
def alone(directory: Path, *options: str) -> Iterator[Brokers]:
    """Run one broker on a data directory."""
    with BrokerProcess(directory / "data", *options) as process:
        yield Alone(process)


@contextmanager
def three(directory: Path) -> Iterator[Brokers]:
    """Run a cluster of three brokers with a PostgreSQL server of its own."""
    with running(Cluster(directory / "cluster")) as cluster:
        yield Three(cluster)
