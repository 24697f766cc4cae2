"""Recognises the state of a pipeline in a checkpoint, so that no result goes on with that of another one.

Spark numbers the sources and the operators with state of a query, and keeps offsets and state by number. It
refuses a checkpoint with another number of sources. But it does not notice that a result was exchanged for
another one with state of the same types: one with another key or another window, or from another place of the
declaration. That would go on with the wrong state, silently.

So a start writes beside Spark's files what the state is of (`FILE`): for each result its operators with state
and the event time of its watermarks. The next start compares. It accepts everything that leaves the meaning
of the state as it is: other filters and columns, another delay of a watermark, results that change their
names or their order. Keys and windows are compared by how they are computed from the columns of the source.
What is aggregated may be computed in another way, or have another name, but not both.

State that no batch has completed yet is none, so such a checkpoint fits every declaration. So does one
without the note, from an older release, and one that was written by another version of Spark, which may show
the same plan in other words.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple, TypeAlias

import pyspark

from semel.spark.checkpoint import Checkpoint
from semel.spark.partition_offsets import of_json
from semel.spark.pipeline.operators import Operator, ResultState

#: The note, in the directory of the checkpoint.
FILE: Final = "semel-state.json"
FORMAT: Final = 1

#: By the names of results, in the order in which Spark numbers their operators.
States: TypeAlias = Mapping[str, ResultState]
#: The topics that a source reads.
Topics: TypeAlias = frozenset[str]


class Change(NamedTuple):
    """A result whose state in the checkpoint is that of something else."""

    result: str
    was: ResultState | None
    now: ResultState | None

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.result} is new: {self.now}"
        if self.now is None:
            return f"{self.result} was {self.was}, and is not declared any more"
        return f"{self.result} was {self.was}, and is {self.now}"


class Fit(NamedTuple):
    """How a declaration fits a checkpoint."""

    order: list[str]  # of the results, as Spark has numbered them
    changes: list[Change]
    is_known: bool = True  # whether it is known what the state in the checkpoint is of
    inputs: str | None = None  # how the sources differ, if they do

    def refusal(self, pipeline: object, location: str) -> str | None:
        """Return why the query cannot go on with the checkpoint; None if it can."""
        if not self.changes and self.inputs is None:
            return None
        found = [*map(str, self.changes), *([] if self.inputs is None else [self.inputs])]
        text = (
            f"{pipeline} has changed, and does not fit its checkpoint {location}: {'; '.join(found)}. Undo "
            "the change; or start with a new checkpoint directory: the pipeline continues at its position, "
            "and results with state begin with empty state. To compute such a result from the beginning, "
            "give it a pipeline of its own"
        )
        if self.inputs is None:
            text += f". If the state is the right one nevertheless, delete {location}/{FILE}"
        return text


def fit_states(checkpoint: Checkpoint, states: States) -> Fit:
    """Compare the state of results with that in a checkpoint."""
    if checkpoint.last_committed() is None:
        return Fit(list(states), [])
    known = _read(checkpoint) if checkpoint.has_state() else {}
    return Fit(list(states), [], is_known=False) if known is None else Fit(*_compare(known, states))


def inputs_differ(had: Sequence[Topics | None], has: Sequence[Topics | None]) -> str | None:
    """Return how the sources differ, which Spark recognises by their order alone."""
    names = ["; ".join(", ".join(sorted(each or {"?"})) for each in found) for found in (had, has)]
    if len(had) != len(has):
        return (
            f"it reads {len(has)} inputs ({names[1]}), and the checkpoint has {len(had)} ({names[0]}). "
            "Results without state share one input for each source, and results with state have their own"
        )
    if None in (*had, *has) or had == has or Counter(had) != Counter(has):
        return None  # If a source reads another topic, the source itself says what that means.
    return f"it reads its inputs in another order ({names[1]}) than the checkpoint has ({names[0]})"


def _compare(known: States, states: States) -> tuple[list[str], list[Change]]:
    order, changes, new = [], [], [name for name in states if name not in known]
    for name, was in known.items():
        now = states.get(name)
        # A result that has got another name is recognised if only one can be meant.
        renamed = [each for each in new if now is None and states[each].is_that_of(was)]
        if now is not None and now.is_that_of(was):
            order.append(name)
        elif len(renamed) == 1 and _is_only(name, known, states):
            new.remove(renamed[0])
            order.append(renamed[0])
        elif was.operators or (now is not None and now.operators):
            changes.append(Change(name, was, now))
    changes += [Change(name, None, states[name]) for name in new if states[name].operators]
    order += [name for name in states if name not in order]
    return (list(states) if changes else order), changes


def _is_only(name: str, known: States, states: States) -> bool:
    """Whether no other result that is gone has the same state."""
    return not any(
        other != name and other not in states and was.is_that_of(known[name]) for other, was in known.items()
    )


def record(checkpoint: Checkpoint, states: States) -> None:
    """Note what the state of a query is of, before its next batch."""
    before = checkpoint.read(FILE)
    content = {
        "format": FORMAT,
        "spark": _spark(),
        "results": [{"name": name, **asdict(each)} for name, each in states.items()],
    }
    text = json.dumps(content, indent=1)
    if text != before and (states or before is not None):
        checkpoint.write(FILE, text)


def _read(checkpoint: Checkpoint) -> States | None:
    """Return the note; None if it cannot be compared."""
    try:
        content: Any = json.loads(checkpoint.read(FILE) or "null")
        if (content["format"], content["spark"]) != (FORMAT, _spark()):
            return None
        return {each["name"]: _result(each) for each in content["results"]}
    except (ValueError, TypeError, KeyError):
        return None


def _result(found: Any) -> ResultState:
    operators = tuple(
        Operator(each["kind"], *(tuple(each[name]) for name in ("keys", "values", "origins")))
        for each in found["operators"]
    )
    return ResultState(operators, tuple(found["event_times"]))


def _spark() -> str:
    return ".".join(pyspark.__version__.split(".")[:2])


def topics_of(found: Mapping[str, Any] | None) -> Topics | None:
    """Return the topics in the offsets of a source."""
    return None if found is None else frozenset(topic for topic, _ in of_json(found))
