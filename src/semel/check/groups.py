"""Checks of groups: every input is claimed once, and a group's position is the last committed one."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import FAIL, OK, Claim, Name, OffsetCommit, OffsetFetch, Partition, SendOffsets
from semel.check.transactions import ABORTED, COMMITTED, Fate, settled

GroupOperation: TypeAlias = SendOffsets | OffsetCommit | OffsetFetch


def last_moment(commit: OffsetCommit) -> float:
    """The latest time at which a commit outside of transactions may have set the position."""
    is_over = commit.outcome == OK and commit.ended is not None and commit.is_only_attempt
    return commit.ended if is_over and commit.ended is not None else math.inf


class Claimed(NamedTuple):
    """A claim of a transaction, with the outcome of that transaction."""

    claim: Claim
    operation: SendOffsets
    fate: Fate
    is_last: bool
    """Whether the transaction sent no later position for the partition."""

    @property
    def first(self) -> int:
        """The start of the claim; without a known start it claims nothing."""
        return self.claim.until if self.claim.first is None else self.claim.first


class GroupHistory:
    """The operations of one group on one partition."""

    def __init__(
        self,
        group: str,
        key: Partition,
        operations: Iterable[GroupOperation],
        fates: Mapping[Name, Fate],
        visible: list[int],
    ) -> None:
        self.where = f"group {group}, {key[0]}/{key[1]}"
        self.visible = visible
        """The offsets of the records that readers received, in order."""
        steps = settled(operations)
        self.commits = [each for each in steps if isinstance(each, OffsetCommit)]
        self.fetches = [each for each in steps if isinstance(each, OffsetFetch) and each.outcome == OK]
        sends: list[tuple[SendOffsets, Claim]] = []
        for each in steps:
            if isinstance(each, SendOffsets):
                mine = (claim for claim in each.claims if (claim.topic, claim.partition) == key)
                sends.extend((each, claim) for claim in mine)
        sends.sort(key=lambda each: each[0].started)
        last = {operation.transaction: operation for operation, _ in sends}
        self.claims = [
            Claimed(claim, operation, fates[operation.transaction], last[operation.transaction] is operation)
            for operation, claim in sends
        ]

    @cached_property
    def resets(self) -> list[OffsetCommit]:
        """Positions that were, or may have been, set outside of transactions."""
        return [each for each in self.commits if each.outcome != FAIL]

    @cached_property
    def last_reset(self) -> float:
        """The latest time at which a position may have been set outside of transactions."""
        return max(map(last_moment, self.resets), default=-1)


def double_claims(group: GroupHistory) -> Iterator[Anomaly]:
    """Two committed transactions claim the same input, and the position was not reset in between."""
    claims = [
        each for each in group.claims if each.fate.outcome == COMMITTED and each.operation.outcome == OK
    ]
    furthest: Claimed | None = None
    for each in sorted(claims, key=lambda claimed: (claimed.first, claimed.claim.until)):
        if each.first == each.claim.until:
            continue
        if (
            furthest is not None
            and each.first < furthest.claim.until
            and each.fate.transaction != furthest.fate.transaction
            and not _was_set_back(group, furthest, each)
        ):
            says = (
                f"transactions {furthest.fate.transaction} and {each.fate.transaction} both claim offset "
                f"{each.first}"
            )
            proof = (furthest.operation, furthest.fate.end, each.operation, each.fate.end)
            yield anomaly("double-claim", group.where, says, *proof)
        if furthest is None or each.claim.until > furthest.claim.until:
            furthest = each


def _was_set_back(group: GroupHistory, one: Claimed, other: Claimed) -> bool:
    since = min(one.operation.started, other.operation.started)
    return any(reset.position <= other.first and last_moment(reset) >= since for reset in group.resets)


def skipped_inputs(group: GroupHistory) -> Iterator[Anomaly]:
    """Records before the group's position that no transaction claims."""
    claims = [
        each for each in group.claims if each.fate.outcome != ABORTED and each.operation.outcome != FAIL
    ]
    committed = [each for each in claims if each.fate.outcome == COMMITTED and each.operation.outcome == OK]
    if not committed or any(each.claim.first is None for each in claims):
        return
    last = max(committed, key=lambda each: each.claim.until)
    moved = max((each.position for each in group.resets), default=-1)
    claims.sort(key=lambda each: each.first)
    covered, index = claims[0].first, 0
    for offset in group.visible:
        while index < len(claims) and claims[index].first <= offset:
            covered = max(covered, claims[index].claim.until)
            index += 1
        if offset >= last.claim.until:
            return
        if claims[0].first <= offset and offset >= covered and offset >= moved:
            says = f"the position is {last.claim.until}, and no transaction claims offset {offset}"
            yield anomaly("skipped-input", group.where, says, last.operation, last.fate.end)


class _Given(NamedTuple):
    """A position that was, or may have been, set at some moment between two times."""

    position: int
    started: int
    ended: int | None
    """When it was certainly set; None if it may not have been."""
    last: float
    """It was not set after this time."""
    is_void: bool
    """It was certainly not set."""
    asked: int | None
    """It was not set before this time."""
    operation: OffsetCommit | SendOffsets


def _given(group: GroupHistory) -> Iterator[_Given]:
    for commit in group.commits:
        ended = commit.ended if commit.outcome == OK else None
        last = last_moment(commit)
        is_void = commit.outcome == FAIL
        yield _Given(commit.position, commit.started, ended, last, is_void, commit.started, commit)
    for claimed in group.claims:
        fate, operation = claimed.fate, claimed.operation
        is_void = operation.outcome == FAIL or fate.outcome == ABORTED
        is_known = (
            operation.outcome == OK
            and fate.outcome == COMMITTED
            and claimed.is_last
            and fate.answered is not None
        )
        ended = fate.answered if is_known else None
        last = math.inf if ended is None else ended
        yield _Given(claimed.claim.until, operation.started, ended, last, is_void, fate.asked, operation)


class _Writers:
    """What is known about everything that set a group to one position."""

    def __init__(self) -> None:
        self.example: _Given | None = None
        self.last: _Given | None = None
        """Of the settings that may have happened, the one that may have happened last."""
        self.asked: int | None = None
        """When it was first requested: -1 if that is unknown, None if the position was certainly not set."""

    def add(self, given: _Given) -> None:
        self.example = self.example or given
        if given.is_void:
            return
        asked = -1 if given.asked is None else given.asked
        self.asked = asked if self.last is None or self.asked is None else min(self.asked, asked)
        if self.last is None or given.last >= self.last.last:
            self.last = given


def fetched_positions(group: GroupHistory) -> Iterator[Anomaly]:
    """Fetched positions that the group cannot have had at that time."""
    given = list(_given(group))
    if not given:
        return  # The committers of this group are not in the history.
    by_position: dict[int, _Writers] = {}
    for each in given:
        by_position.setdefault(each.position, _Writers()).add(each)
    known = [(each.ended, number) for number, each in enumerate(given) if each.ended is not None]
    known.sort()
    index, newest = 0, None
    for fetch in sorted(group.fetches, key=lambda each: each.started):
        while index < len(known) and known[index][0] < fetch.started:
            done = given[known[index][1]]
            newest = done if newest is None or done.started > newest.started else newest
            index += 1
        if found := _judge(group, fetch, by_position, newest):
            yield found


def _judge(
    group: GroupHistory, fetch: OffsetFetch, by_position: dict[int, _Writers], newest: _Given | None
) -> Anomaly | None:
    position = fetch.position
    if position is None or position < 0:
        if newest is None:
            return None
        says = f"it has no position, after {newest.position} was acknowledged"
        return anomaly("lost-offset", group.where, says, newest.operation, fetch)
    writers = by_position.get(position)
    if writers is None or writers.example is None:
        return anomaly("phantom-offset", group.where, f"no operation set its position to {position}", fetch)
    if writers.last is None:
        says = f"its position is {position}, which was never committed"
        return anomaly("aborted-offset", group.where, says, writers.example.operation, fetch)
    moment = fetch.started if fetch.ended is None else fetch.ended
    if writers.asked is not None and writers.asked > moment:
        says = f"its position was {position} before anyone asked to commit it"
        return anomaly("early-offset", group.where, says, writers.last.operation, fetch)
    if newest is not None and writers.last.last < newest.started:
        says = f"its position is {position}, after {newest.position} was acknowledged"
        return anomaly("lost-offset", group.where, says, writers.last.operation, newest.operation, fetch)
    return None


def unstable_positions(group: GroupHistory) -> Iterator[Anomaly]:
    """Stable positions that were returned while an open transaction had another one pending."""
    pending = sorted(
        (
            each
            for each in group.claims
            if each.operation.outcome == OK
            and each.fate.outcome == COMMITTED
            and each.operation.ended is not None
        ),
        key=lambda each: each.operation.ended or 0,
    )
    index, longest = 0, None
    for fetch in sorted(group.fetches, key=lambda each: each.started):
        while index < len(pending) and (pending[index].operation.ended or 0) < fetch.started:
            if longest is None or _asked(pending[index]) > _asked(longest):
                longest = pending[index]
            index += 1
        if not fetch.is_stable or longest is None or fetch.ended is None or fetch.ended >= _asked(longest):
            continue
        if group.last_reset >= longest.operation.started:
            continue  # A later commit supersedes the pending one.
        says = f"it was told {fetch.position} while {longest.fate.where} had {longest.claim.until} pending"
        yield anomaly("unstable-offset", group.where, says, longest.operation, fetch, longest.fate.end)


def _asked(claimed: Claimed) -> int:
    return -1 if claimed.fate.asked is None else claimed.fate.asked
