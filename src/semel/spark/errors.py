"""The errors of a pipeline, besides those of brokers. The text says what happened and what to do."""


class OptionError(ValueError):
    """An option is unknown, missing, or has an invalid value."""


class DataLoss(Exception):
    """Records that a query has yet to read are no longer in the log."""


class SnapshotOvertaken(Exception):
    """Compaction removed records of a snapshot before they were read."""


class KeyMissing(Exception):
    """A record of a table has no key."""


class TableTooLarge(Exception):
    """A table is larger than one task can keep."""


class PipelineError(Exception):
    """The sink cannot continue without risking exactly-once, so the query stops."""


class BadRecords(PipelineError):
    """Records of the input cannot be parsed, and the declaration says that this stops the pipeline."""


class PipelineFenced(PipelineError):
    """Another copy of the pipeline has taken over; this one has to stop."""


class PipelineMismatch(PipelineError):
    """Checkpoint and pipeline contradict each other."""


class AttemptsLost(PipelineError):
    """The broker aborted transactions of a batch before it was decided. After a restart it is written again.

    Raised only in the current run: a copy of a pipeline that another one has replaced gets PipelineFenced.
    """


class TableChanged(PipelineError):
    """Another program changed the table while a batch was written. A restart writes it again, or refuses."""


class TableBusy(TableChanged):
    """Other programs have committed to a table at every attempt. A restart tries it again."""


class DecidedTableChanged(PipelineError):
    """A table has changed between a decision and its commit, so that it cannot get the rows."""


class TableUnreachable(PipelineError):
    """A table, or its storage, cannot be read or written. A restart tries it again."""


class BatchUnfinished(PipelineError):
    """A batch was committed, but a step after the commit has failed. A restart repeats the step."""


class DecidedTransactionLost(PipelineError):
    """The broker aborted a transaction after the pipeline had decided to commit it."""


class JavaNotFound(Exception):
    """No Java was found that can run Spark."""
