"""What a transactional producer is at, between two calls.

    NEW --init--> READY --begin--> OPEN --commit--> READY        OPEN --prepare--> PREPARED --commit--> READY
                                   OPEN --abort---> READY                          PREPARED --abort---> READY

COMMITTING and ABORTING are the states of an end that was not answered: it can only be asked for again. DEAD
is for good.
"""

from enum import Enum


class State(Enum):
    """The states. Their values complete "the producer …"."""

    NEW = "has not taken its transactional id"
    READY = "has no transaction open"
    OPEN = "has a transaction open"
    PREPARED = "has prepared its transaction"
    COMMITTING = "has asked for a commit and does not know its outcome"
    ABORTING = "has asked for an abort and got no answer"
    DEAD = "cannot go on"
    CLOSED = "is closed"
