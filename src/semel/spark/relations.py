"""What the options of a pipeline say about others that write to the same output (see `sink.predecessors`)."""

from dataclasses import dataclass

from semel.spark.option_reader import OptionReader

RELATIONS = ("pipeline.new", "pipeline.beside")


@dataclass(frozen=True, slots=True)
class Relations:
    """Whether a pipeline begins on purpose, and beside which others."""

    is_new: bool = False  # this pipeline begins on purpose, whatever the others have written
    beside: frozenset[str] = frozenset()  # pipelines that share the output on purpose

    @classmethod
    def of(cls, given: OptionReader) -> "Relations":
        """Parse them."""
        names = (each.strip() for each in (given.text("pipeline.beside") or "").split(","))
        return cls(given.flag("pipeline.new", False), frozenset(filter(None, names)))


ALONE = Relations()
