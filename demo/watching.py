"""Notices when a query makes no progress, and describes its state.

How long a query may take depends on the machine, so no step has a fixed time limit. Instead, every visible
step of a query (a batch planned or committed, an offset counted) restarts its clock, and a query has stalled
when its clock has run several times longer than for any step before.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Enough for a start of Spark on a machine that is ten times slower than usual; and twice that before the
#: first step, when the speed of the machine is unknown.
STALL_SECONDS_MIN = 240.0
START_SECONDS = 480.0
STALL_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of a query."""

    counted: int  # orders, as its group has them
    planned: int  # the newest batch in its checkpoint; -1 before the first
    committed: int

    @classmethod
    def of(cls, checkpoint: Path, counted: int) -> "Step":
        """Read the checkpoint of a query."""
        return cls(counted, _newest(checkpoint / "offsets"), _newest(checkpoint / "commits"))


def _newest(log: Path) -> int:
    names = [each.name for each in log.iterdir()] if log.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


class Watch:
    """The clocks of all queries."""

    def __init__(self, names: Iterable[str], now: float) -> None:
        self._since = dict.fromkeys(names, now)
        self._steps: dict[str, object] = {}
        self._longest_seconds: float | None = None

    def see(self, steps: Mapping[str, object], now: float) -> None:
        """Record the progress of the queries."""
        for name, step in steps.items():
            if self._steps.get(name, step) != step:
                self._longest_seconds = max(self._longest_seconds or 0.0, now - self._since[name])
                self._since[name] = now
            self._steps[name] = step

    def restart(self, now: float) -> None:
        """Restart all clocks."""
        self._since = dict.fromkeys(self._since, now)

    @property
    def limit_seconds(self) -> float:
        """How long a query may go without a step."""
        if self._longest_seconds is None:
            return START_SECONDS
        return max(STALL_SECONDS_MIN, STALL_FACTOR * self._longest_seconds)

    def stalled(self, names: Iterable[str], now: float) -> list[str]:
        """Return the queries that have gone without a step for too long."""
        return [name for name in names if now - self._since[name] > self.limit_seconds]


def account(name: str, step: Step, orders: int | None, log: Sequence[str]) -> str:
    """Say where a query is, how far behind, and why it failed last, from the log of its driver."""
    behind = "an unknown number of" if orders is None else f"{orders - step.counted:,}"
    return (
        f"{name} has counted {step.counted:,} orders and has {behind} waiting; its checkpoint has planned "
        f"batch {step.planned} and committed batch {step.committed}; {_last_failure(name, log)}"
    )


def _last_failure(name: str, log: Sequence[str]) -> str:
    for line in reversed(log):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and (event.get("event"), event.get("pipeline")) == ("restart", name):
            return f"its last failure was: {event['why']}"
    return "its driver reports no failure of it"


def last_error(log: Path) -> str:
    """Return the last error in Spark's own log, with the last line of its trace that names a cause."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    first = max((at for at, line in enumerate(lines) if " ERROR " in line), default=None)
    if first is None:
        return "Spark's log has no error"
    causes = [line for line in lines[first + 1 :] if line[:1].isalpha() and ": " in line]
    return f"the last error in Spark's log is: {' | '.join([lines[first], *causes[-1:]])}"
