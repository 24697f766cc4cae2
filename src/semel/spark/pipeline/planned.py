"""What a start of a pipeline would do, as data. `plan` finds it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Then(StrEnum):
    """What becomes of a part of a pipeline."""

    CONTINUES = "continues"
    BEGINS = "begins"
    STARTS_OVER = "starts over"  # a topic that was created again
    BEGINS_EMPTY = "begins empty"  # state that the pipeline had, in another checkpoint
    ORPHANED = "orphaned"  # an output that gets nothing any more
    REMOVED = "removed"  # an input that is not read any more
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Kind(StrEnum):
    """What a finding means."""

    REFUSED = "refused"  # the start fails
    LOST = "lost"  # input or state
    AGAIN = "again"  # output is written a second time
    NOTE = "note"


class Verdict(StrEnum):
    """What a start would come to."""

    SAFE = "safe"  # it does what is expected, and nothing is lost
    LOSS = "loss"  # something is lost, or written again
    REFUSED = "refused"


class Finding(NamedTuple):
    """What somebody should know before the start."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What becomes of an output."""

    sink: str | None  # None if it is not declared any more
    writes_to: str
    then: Then
    details: str = ""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What becomes of a topic of the input."""

    source: str | None
    topic: str
    then: Then
    offsets: Mapping[int, int] = field(default_factory=dict)  # the first one that is read, by partition
    lag: int | None = None  # offsets that are waiting
    lost: int = 0  # offsets that were deleted before they were read


@dataclass(frozen=True, slots=True)
class StatePlan:
    """What becomes of the state of a result."""

    result: str
    of: str
    then: Then


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """What a start would do."""

    pipeline: str
    pipeline_id: str  # the id under which the position is stored
    position: str
    checkpoint: str
    sinks: tuple[SinkPlan, ...]
    sources: tuple[SourcePlan, ...]
    states: tuple[StatePlan, ...]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What the findings come to."""
        kinds = {each.kind for each in self.findings}
        if Kind.REFUSED in kinds:
            return Verdict.REFUSED
        return Verdict.LOSS if kinds & {Kind.LOST, Kind.AGAIN} else Verdict.SAFE
