"""What can go wrong in a pipeline, beside what brokers refuse. The text says what happened and what to do."""


class OptionError(ValueError):
    """An option is unknown, missing, or has a value that does not fit."""


class DataLoss(Exception):
    """Records that a query has still to read are not in the log any more."""


class SnapshotOvertaken(Exception):
    """Compaction has removed records of a snapshot before they were read."""


class KeyMissing(Exception):
    """A record of a table has no key."""


class TableTooLarge(Exception):
    """A table has more than one task can keep."""


class PipelineError(Exception):
    """The sink cannot go on without a risk for exactly-once, so the query stops."""


class PipelineFenced(PipelineError):
    """Another copy of the pipeline has taken over; this one has to stop."""


class PipelineMismatch(PipelineError):
    """Checkpoint and pipeline do not tell the same story."""


class DecidedTransactionLost(PipelineError):
    """The broker has aborted a transaction after the pipeline had decided to commit it."""


class JavaNotFound(Exception):
    """There is no Java that can run Spark."""
