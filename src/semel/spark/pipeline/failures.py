"""Extracts a short message for a failed query: Spark embeds the error of a Python process in many pages."""

import re

#: What follows the message: Spark's description of the query, and the Java stack trace.
_BEHIND = ("\n=== Streaming Query ===", "\n\tat ", "\nDriver stacktrace:", "\nJVM stacktrace:")
_TRACEBACK = "Traceback (most recent call last):\n"
_STATE = re.compile(r"\s*SQLSTATE: ")
_OURS = "semel."
#: How `edge` starts an error of ours, before any traceback.
_HEADLINE = re.compile(r"\bsemel(?:\.\w+)+: (.+?)\n\nThe above exception was the direct cause", re.DOTALL)
#: Failures that a restart may resolve: the broker, a table, or the storage of either was unavailable; the
#: broker has aborted transactions that were not decided yet; another program has changed a table; compaction
#: was faster than a lookup; a Python process of Spark died; or queries that started at the same time have
#: damaged what they share, which `first_start` mends. Every message that says to start again is one of these.
_PASSING = re.compile(
    r"(?:^|: )semel\.client\.errors\.(BrokerUnreachable|ConnectionLost|RequestTimedOut): "
    r"|(?:^|: )semel\.wire\.errors\.KafkaError: (COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR"
    r"|LEADER_NOT_AVAILABLE|NOT_LEADER_OR_FOLLOWER|KAFKA_STORAGE_ERROR): "
    r"|(?:^|: )semel\.spark\.errors\.(AttemptsLost|BatchUnfinished|SnapshotOvertaken|TableChanged"
    r"|TableUnreachable): "
    r"|Python worker (exited unexpectedly|failed to connect back)"
    r"|Task not serializable",
    re.MULTILINE,
)


def is_passing(error: BaseException) -> bool:
    """Whether the same query is likely to succeed after a restart."""
    return _PASSING.search(str(error)) is not None


def explain(error: BaseException) -> str:
    """Return why a query failed: its Python error if there is one, else Spark's own message.

    The Python error is the headline of our data source, else the error at the end of the last traceback.
    """
    text = str(error)
    headline = _HEADLINE.search(text.partition(_TRACEBACK)[0])
    if headline is not None:
        return headline[1]
    for mark in _BEHIND:
        text = text.partition(mark)[0]
    _, found, trace = text.rpartition(_TRACEBACK)
    lines = (trace if found else text).splitlines()
    if found:
        # The lines of a traceback are indented; the first that is not is the error.
        while lines and (not lines[0].strip() or lines[0].startswith(" ")):
            lines.pop(0)
        said = "\n".join(lines)
    else:
        said = lines[0] if lines else type(error).__name__
    said = _STATE.split(said)[0].strip()
    name, colon, rest = said.partition(": ")
    if not colon or not re.fullmatch(r"[\w.]+", name):
        return said
    # Semel's own errors are sentences. Others need their name to be understood.
    return rest if name.startswith(_OURS) else f"{name.rpartition('.')[2]}: {rest}"
