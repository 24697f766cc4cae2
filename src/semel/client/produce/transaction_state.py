"""The state of a transactional producer between two calls.

    NEW --init--> READY --begin--> OPEN --commit--> READY        OPEN --prepare--> PREPARED --commit--> READY
                                   OPEN --abort---> READY                          PREPARED --abort---> READY

COMMITTING and ABORTING: the end was sent and not answered, so it can only be repeated. DEAD is final.
"""

from enum import Enum


class State(Enum):
    """The states. Their values complete "the producer …"."""

    NEW = "is not initialised"
    READY = "has no open transaction"
    OPEN = "has an open transaction"
    PREPARED = "has prepared its transaction"
    COMMITTING = "has sent a commit whose outcome is unknown"
    ABORTING = "has sent an abort without an answer"
    DEAD = "cannot continue"
    CLOSED = "is closed"
