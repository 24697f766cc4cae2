"""What the check of a ledger has found."""

from collections.abc import Callable
from typing import Final, NamedTuple

Progress = Callable[[str], None]
"""Called with a sentence now and then."""

RESTORE: Final = "restore the ledger from a backup (docs/cluster.md, Restoring)"
FINDINGS_MAX: Final = 1_000
"""Findings that are kept and told. The others are only counted."""
TOLD_ROWS: Final = 100_000
"""Rows between two sentences of progress."""


class Finding(NamedTuple):
    """Something that cannot be, unless rows or objects were lost or altered."""

    kind: str
    """The table, or ``object store``."""
    what: str
    """What was found, and what it means."""
    advice: str
    """What to do."""


class Findings:
    """The findings of one check. Each is told at once: what comes later may fail."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self.kept: list[Finding] = []
        self.total = 0

    def add(self, finding: Finding) -> None:
        """Keep and tell a finding, or only count it."""
        self.total += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(finding)
            self._tell(finding)


def not_told(finding: Finding) -> None:
    """For those who want all findings together."""


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
    failure: str | None = None
    """Why the check ended early."""
    not_checked: tuple[str, ...] = ()
    """What was not checked, or not to its end."""
