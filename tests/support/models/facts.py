"""What kinds of facts a decision has."""

from collections.abc import Iterable

from semel.core.facts import Put
from semel.core.types import Fact


def kind_of(fact: Fact) -> type:
    """Return the class of a fact; of a ``Put``, the class of its key."""
    return type(fact.key) if isinstance(fact, Put) else type(fact)


def kinds_of(facts: Iterable[Fact]) -> list[type]:
    """Return the kind of each fact."""
    return [kind_of(fact) for fact in facts]
