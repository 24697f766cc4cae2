"""Gives damaged and random bytes to every decoder, and damaged files to recovery.

One seed is a hundred inputs. An input fails if its target raises anything but its typed errors, takes more
than ``SECONDS_MAX`` of processor time, or uses memory out of proportion to its size (measured on a sample).
Every input that ever failed is kept in ``tests/corpus`` under the name of its target, and the tests run it
again.
"""

import contextlib
import hashlib
import random
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from verification.fuzz_targets import Target, by_name, targets
from verification.mutations import noise

CORPUS: Final = Path(__file__).parent.parent / "tests" / "corpus"
INPUTS_PER_SEED: Final = 100
SECONDS_MAX: Final = 2.0
"""Processor time for one input."""
BYTES_PER_BYTE: Final = 300
BYTES_MORE: Final = 4 << 20
"""Memory allowed for any input: a small record is a large object, and decompression may reach its limit."""
SAMPLE: Final = 25
"""Memory is measured for one in this many inputs."""


class TooLong(BaseException):
    """An input took too long. A BaseException, so that it is not caught by accident."""


@dataclass(frozen=True)
class Failure:
    """A failing input and its result."""

    target: str
    seed: int
    what: str
    data: bytes


@dataclass
class Fuzzed:
    """The results of all inputs."""

    inputs: int = 0
    failures: list[Failure] = field(default_factory=list)
    seeds: range = range(0)
    """The seeds used."""


def run(inputs: int, first_seed: int = 0, corpus: Path | None = CORPUS) -> Fuzzed:
    """Try this many inputs, and keep failing ones in the corpus."""
    found = Fuzzed()
    seed = first_seed
    weights = [target.weight for target in targets()]
    with _limited_time():
        while found.inputs < inputs:
            chance = random.Random(seed)
            chosen = chance.choices(targets(), weights, k=min(INPUTS_PER_SEED, inputs - found.inputs))
            for target in chosen:
                data = _input(target, chance)
                what = problem(target, data, is_measured=chance.randrange(SAMPLE) == 0)
                if what is not None:
                    found.failures.append(Failure(target.name, seed, what, data))
                    keep(target, data, corpus)
            found.inputs += len(chosen)
            seed += 1
    found.seeds = range(first_seed, seed)
    return found


def _input(target: Target, chance: random.Random) -> bytes:
    if chance.random() < 0.05 and target.change.__name__ == "damaged":
        return noise(chance)
    return target.change(target.make(chance), chance, [target.make(chance)])


def problem(target: Target, data: bytes, *, is_measured: bool = True) -> str | None:
    """Run a target on an input. Return what is wrong, or None."""
    is_measured = is_measured and target.is_bounded
    if is_measured:
        tracemalloc.start()
    if _has_timer():
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    try:
        target.read(data)
    except target.errors:
        pass
    except TooLong:
        return f"it takes more than {SECONDS_MAX} s"
    except Exception as error:  # noqa: BLE001 - untyped errors are what fuzzing looks for
        return f"{type(error).__name__}: {error}"[:500]
    finally:
        if _has_timer():
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        peak = tracemalloc.get_traced_memory()[1] if is_measured else 0
        if is_measured:
            tracemalloc.stop()
    allowed = BYTES_MORE + BYTES_PER_BYTE * len(data)
    return f"{peak} bytes of memory for an input of {len(data)}" if peak > allowed else None


def keep(target: Target, data: bytes, corpus: Path | None) -> None:
    """Add an input to the corpus."""
    if corpus is not None:
        corpus.mkdir(exist_ok=True)
        name = f"{target.name}.{hashlib.sha256(data).hexdigest()[:12]}.bin"
        (corpus / name).write_bytes(data)


def replay(path: Path) -> str | None:
    """Run an input of the corpus. Return what is wrong, or None."""
    with _limited_time():
        return problem(by_name(path.name.rsplit(".", 2)[0]), path.read_bytes())


def _has_timer() -> bool:
    return signal.getsignal(signal.SIGVTALRM) is _end and _is_main()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """Interrupt inputs that take too long, if the platform supports it."""
    if not _is_main():
        # Signals only reach the main thread.
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise TooLong
