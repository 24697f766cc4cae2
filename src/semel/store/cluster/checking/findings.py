"""Collect and report the findings of a check of the ledger."""

from collections.abc import Callable
from typing import Final, NamedTuple

Progress = Callable[[str], None]
"""Called from time to time with a sentence."""

RESTORE: Final = "restore the ledger from a backup (docs/cluster.md, Restoring)"
FINDINGS_MAX: Final = 1_000
"""Findings that are kept and reported. Further ones are only counted."""
TOLD_ROWS: Final = 100_000
"""Rows between two progress reports."""


class Finding(NamedTuple):
    """A contradiction that only lost or altered rows or objects explain."""

    kind: str
    """The table, or ``object store``."""
    what: str
    """What was found, and what it means."""
    advice: str
    """What to do."""


class Findings:
    """The findings of one check. Each is reported at once, because the rest of the check may fail."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self.kept: list[Finding] = []
        self.total = 0

    def add(self, finding: Finding) -> None:
        """Keep and report a finding; beyond ``FINDINGS_MAX``, only count it."""
        self.total += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(finding)
            self._tell(finding)


def not_told(finding: Finding) -> None:
    """Report nothing: the caller reads all findings from ``Checked``."""


class Checked(NamedTuple):
    """The result of a check."""

    findings: list[Finding]
    total: int
    """The number of findings, including those that are not listed."""
    partitions: int
    batches: int
    chunks: int
    objects: int
    compared_objects: bool
    """Whether the objects were compared with the object store."""
    failure: str | None = None
    """Why the check ended early."""
    not_checked: tuple[str, ...] = ()
    """The parts that were not checked, or not completely."""
