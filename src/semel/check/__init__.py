"""A history of what clients did and saw, and a checker that finds what no correct log would have shown them.

It knows nothing of Semel: histories of any Kafka-compatible broker can be checked. docs/checker.md says how.
"""

from semel.check.catalogue import DEFINITIONS, Anomaly
from semel.check.checker import check
from semel.check.history import (
    FAIL,
    INFO,
    OK,
    Abort,
    Assign,
    Begin,
    Claim,
    Commit,
    Ends,
    Init,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Poll,
    Produce,
    SendOffsets,
    Topic,
    Trim,
)
from semel.check.lines import HistoryError, read_history, read_lines, write_lines
from semel.check.outcomes import outcome_of
from semel.check.recorder import Process, Recorder
from semel.check.verdict import Verdict

__all__ = [
    "DEFINITIONS",
    "FAIL",
    "INFO",
    "OK",
    "Abort",
    "Anomaly",
    "Assign",
    "Begin",
    "Claim",
    "Commit",
    "Ends",
    "HistoryError",
    "Init",
    "OffsetCommit",
    "OffsetFetch",
    "Operation",
    "Poll",
    "Process",
    "Produce",
    "Recorder",
    "SendOffsets",
    "Topic",
    "Trim",
    "Verdict",
    "check",
    "outcome_of",
    "read_history",
    "read_lines",
    "write_lines",
]
