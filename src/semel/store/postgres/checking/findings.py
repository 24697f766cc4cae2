"""What the check of a ledger has found."""

from collections.abc import Callable
from typing import Final, NamedTuple

Progress = Callable[[str], None]
"""Called with a sentence now and then."""

RESTORE: Final = "restore the ledger from a backup (docs/cluster.md, Restoring)"
FINDINGS_MAX: Final = 1_000
"""Findings that are kept. The others are only counted."""


class Finding(NamedTuple):
    """Something that cannot be, unless rows or objects were lost or altered."""

    kind: str
    """The table, or ``object store``."""
    what: str
    """What was found, and what it means."""
    advice: str
    """What to do."""


class Findings:
    """The findings of one check."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.total = 0

    def add(self, finding: Finding) -> None:
        """Keep a finding, or only count it."""
        self.total += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(finding)


class Checked(NamedTuple):
    """The result of a check."""

    findings: list[Finding]
    total: int
    """The number of findings, also of those that are not listed."""
    partitions: int
    batches: int
    chunks: int
    objects: int
    compared_objects: bool
    """Whether the objects were compared with the object store."""
