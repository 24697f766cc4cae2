"""Checks of transactional ids: previous owners are fenced, and no other producer is."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import FAIL, OK, Commit, Init, Name, Produce, SendOffsets
from semel.check.transactions import COMMITTED, FENCED, Fate, settled


class Owners:
    """Which processes took over a transactional id, and when."""

    def __init__(self, inits: Iterable[Init]) -> None:
        self._all = sorted(settled(inits), key=lambda each: each.started)
        done = sorted((each for each in self._all if each.outcome == OK), key=_ended)
        self._times = [_ended(each) for each in done]
        self._newest: list[Init] = []
        """For each takeover, in the order of their ends: the one that started last, of those up to it."""
        self._own: dict[Name, list[Init]] = {}
        for each in done:
            before = self._newest[-1] if self._newest else each
            self._newest.append(max(before, each, key=lambda init: init.started))
            self._own.setdefault(each.process, []).append(each)

    def own(self, process: Name, moment: int) -> Init | None:
        """Return the last takeover by the process before the moment."""
        before = [each for each in self._own.get(process, ()) if _ended(each) <= moment]
        return before[-1] if before else None

    def newer(self, process: Name, moment: int) -> tuple[Init, Init] | None:
        """Return the takeover by the process, and one by another process after it and before the moment."""
        own = self.own(process, moment)
        count = bisect_left(self._times, moment)
        if own is None or count == 0:
            return None
        newest = self._newest[count - 1]
        return (own, newest) if newest.process != process and newest.started > _ended(own) else None

    def others(self, own: Init, moment: int) -> Iterator[Init]:
        """Return takeovers by others that may have happened between `own` and the moment."""
        for each in self._all:
            is_over = each.ended is not None and each.ended < own.started
            if each is not own and each.outcome != FAIL and not is_over and each.started <= moment:
                yield each


def _ended(init: Init) -> int:
    return init.started if init.ended is None else init.ended


def zombies(transactional_id: str, owners: Owners, fates: Iterable[Fate]) -> Iterator[Anomaly]:
    """Acknowledgements to a producer that had been replaced."""
    for fate in fates:
        is_committed = fate.outcome == COMMITTED and isinstance(fate.end, Commit) and fate.end.outcome == OK
        steps: list[tuple[str, Commit | Produce | SendOffsets | None]] = [
            ("zombie-commit", fate.end if is_committed and isinstance(fate.end, Commit) else None),
            ("zombie-write", fate.last_write),
        ]
        for name, step in steps:
            found = owners.newer(step.process, step.started) if step else None
            if step is None or found is None:
                continue
            own, newer = found
            says = f"{fate.where} of process {own.process}, after process {newer.process} had taken over"
            yield anomaly(name, transactional_id, says, own, newer, step)


def needless_fences(transactional_id: str, owners: Owners, fates: Iterable[Fate]) -> Iterator[Anomaly]:
    """Producers that were fenced without a reason, if the history has the timeout."""
    for fate in fates:
        step = fate.fenced
        if step is None or step.ended is None or fate.begun is None or step.error not in FENCED:
            continue
        own = owners.own(step.process, fate.begun)
        if own is None or own.timeout is None or step.ended - fate.begun >= own.timeout:
            continue
        if next(owners.others(own, step.ended), None) is None:
            says = f"process {step.process} got {step.error}, but no other process took over the id"
            yield anomaly("needless-fence", transactional_id, says, own, step)
