"""Why a target is not reached, where it is not: what stands in the way by design, not an excuse."""

from fnmatch import fnmatchcase

WHY = {
    "*: transactions per second, over mock's": (
        "The mock cluster keeps nothing; Semel decodes, decides and flushes before it answers."
    ),
    "librdkafka, *, 1 producer: transactions per second, over kafka's": (
        "Much of a short transaction is the client's own time, which is the same for both."
    ),
    "*: p99, over kafka's": (
        "Semel waits for the disk in every transaction, Kafka as it comes never does: a slow flush is in the"
        " p99 of one alone."
    ),
    "*, 1 producer: transactions per second, over kafka's": (
        "A commit waits for a flush, and Kafka's as it comes does not."
    ),
    "*, 8 producers: transactions per second, over kafka's": (
        "The producers share the cores with the broker, and Semel's rules run on one core."
    ),
    "overhead of a transaction, *: share of the throughput that is lost": (
        "A commit is one request and one flush more, however many records come before it."
    ),
    "overhead of a transaction, *: less Apache Kafka's": (
        "Overhead is a share: where the plain write is faster, the same time for a commit is more of it."
    ),
    "from commit to visible, *": "A reader asked again before it found what was committed.",
    "a producer hangs, *": "The reader had not got the last records when the hanging producer ended.",
    "bulk, *: produce, over kafka's without a flush": (
        "Semel flushes before it answers, and handles each batch in Python; Kafka as it comes does not flush."
    ),
    "bulk, *: consume, over kafka's without a flush": (
        "Kafka hands files to the kernel; Semel reads them and sends them from Python."
    ),
    "Spark, *": "Rows go through a process of Python; Spark's own connector is inside Java.",
    "ready when new, over kafka's": "Python imports its modules before anything else.",
    "memory *, over kafka's": "Python's modules and the tails of partitions are in memory.",
    "one idempotent producer, *": "The mock cluster keeps nothing; Semel flushes before it answers.",
    "one consumer reading back *": "The mock cluster reads from memory, Semel from files.",
    "eight producers, one record per request *": "A request costs its decoding, whatever is in it.",
    "raw client, *": "A transaction is two requests, the plain write is one.",
    "* librdkafka producers, *": "The mock cluster keeps nothing; Semel flushes before it answers.",
    "one librdkafka producer, *": "The mock cluster keeps nothing; Semel flushes before it answers.",
    "a journal topic with one transaction left open *": "The two topics are read in turn, not at once.",
    "Spark: *": "Rows go between Java and a process of Python.",
    "ready with *": "Python imports its modules, and the ledger is opened and read.",
    "resident memory *": "Python's modules and the tails of partitions are in memory.",
}
"""By the row, as a pattern; the first that fits."""
UNKNOWN = "nobody has looked into it yet"


def why(what: str) -> str:
    """The reason for a row that is not reached."""
    return next((text for pattern, text in WHY.items() if fnmatchcase(what, pattern)), UNKNOWN)
