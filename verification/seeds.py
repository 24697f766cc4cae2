"""Tries one seed after another, and provides directories in memory, for runs over recorded stores."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar


class Found(Protocol):
    """The results of a run."""

    states: int
    """The number of states tried."""
    seeds: range
    """The seeds used."""


F = TypeVar("F", bound=Found)


def try_seeds(
    found: F, one: Callable[[int, F, int], None], states: int, first_seed: int, states_per_seed: int
) -> F:
    """Try the states of one seed after another, until this many have been tried."""
    seed = first_seed
    while found.states < states:
        one(seed, found, min(states_per_seed, states - found.states))
        seed += 1
    found.seeds = range(first_seed, seed)
    return found


def shared_memory() -> str | None:
    """Return a directory in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Create a temporary directory, in memory if the system supports that."""
    with tempfile.TemporaryDirectory(dir=shared_memory()) as directory:
        yield Path(directory)
