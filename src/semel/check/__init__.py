"""Histories of what clients did and saw, and a checker that finds anomalies in them.

It does not depend on Semel: histories of any Kafka-compatible broker can be checked. See docs/checker.md.
"""

from semel.check.catalogue import DEFINITIONS, Anomaly
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
    HistoryError,
    Init,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Poll,
    Produce,
    SendOffsets,
    Topic,
    Trim,
    read_history,
    read_lines,
    write_lines,
)
from semel.check.recorder import Process, Recorder
from semel.check.stages import check
from semel.check.transactions import outcome_of
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
