"""Why a target is not reached, where it is not: what stands in the way by design, not an excuse."""

from fnmatch import fnmatchcase

_REQUEST = (
    "A request costs Semel some 40 µs of one core, because its rules run in Python (ADR 0014), and librdkafka"
    " sends one for each partition and two more for each transaction."
)
_FLOOR = (
    "The mock cluster keeps nothing and is compiled. Semel writes and flushes every commit (what a flush"
    " takes here is told above), and a request costs some 40 µs of one core in Python (ADR 0014)."
)
_PYTHON_ROWS = (
    "Every row goes from Java through a process of Python and back, which Spark's own connector does not"
    " need: what a Python source of ready-made batches reaches is told beside the targets of Spark."
)
_FRESH_MEMORY = (
    "Semel flushes before it answers, and Kafka as it comes does not. On a virtual machine that gives freed"
    " memory back, fresh pages cost more than the copy into them (ADR 0014)."
)

WHY = {
    "a producer beside bulk: p99*": (
        "A request waits for the commit under way and for the one that it is in, each of up to 8 MiB that are"
        " written and flushed. Ten clients that write as fast as they can keep the disk busy, and on this"
        " machine also both cores; smaller commits (`semel.tick.bytes.max`) make the wait shorter and bulk"
        " writes slower."
    ),
    "a producer beside *: p99*": (
        "A request that is alone takes a millisecond. Beside others it waits for its turn: a few slices or"
        " commits of some milliseconds each, on a core that the attacking process uses too."
    ),
    "*: transactions per second, over mock's": _FLOOR,
    "librdkafka, *, 1 producer: transactions per second, over kafka's": (
        "More than half of such a transaction is the client's own time, which is the same for both: where it"
        " is told above, the target is more than the client does with the mock cluster."
        f" {_REQUEST} Kafka as it comes never waits for the disk."
    ),
    "*: p99, over kafka's": (
        "Where it is told above, a quarter of Kafka's is less than the client's own median with the mock"
        " cluster. The rest is not the disk: a broker that writes nothing (`--memory`) has the same p99."
        " Every 100 ms the ledger takes what was committed since, in a thread that needs the interpreter's"
        " lock as the event loop does, for some milliseconds; a transaction that meets it waits in pieces."
    ),
    "*, 1 producer: transactions per second, over kafka's": (
        "The broker takes some 80 µs for each partition of a transaction, on one core in Python, and that is"
        " most of the time; without a disk (`--memory`) it is a fifth to a quarter faster."
    ),
    "*, 8 producers: transactions per second, over kafka's": (
        "Semel's rules run on one core, which is busy, while Kafka uses what the producers leave of two."
        " Without a disk (`--memory`) it is up to a third faster, so it is mostly Python's time."
    ),
    "overhead of a transaction, *, 1 producer: share of the throughput that is lost": (
        "A commit is two requests more than the plain write, and the client waits for each. With the mock"
        " cluster, which keeps nothing, the client itself loses as much as is told above, or nearly that."
    ),
    "overhead of a transaction, *: share of the throughput that is lost": (
        "A commit is two requests more than the plain write. Which of client and broker is the limit with"
        " several producers was not measured."
    ),
    "overhead of a transaction, *: less Apache Kafka's": (
        "Overhead is a share of the rate without transactions, which is told above for both, beside the rate"
        " with them: who is slow without transactions loses little by them, or gains. Why several librdkafka"
        " producers write to Kafka as slowly as that was not measured."
    ),
    "from commit to visible, *": "A reader asked again before it found what was committed.",
    "a producer hangs, *": "The reader had not got the last records when the hanging producer ended.",
    "bulk, *: produce, over kafka's without a flush": _FRESH_MEMORY,
    "bulk, *: consume, over kafka's without a flush": (
        "Kafka hands files to the kernel. Semel reads them into a buffer of its own, because offsets are"
        " stamped into it, and sends that: two copies that the kernel makes, and a buffer that is cleared"
        " before (ADR 0033)."
    ),
    "Spark, *": _PYTHON_ROWS,
    "ready when new, over kafka's": "Most of a start is the import of Python's modules.",
    "memory *, over kafka's": "Python's modules and the tails of partitions are in memory.",
    "one idempotent producer, *": (
        "The client waits for answers, and they wait for a processor: its two threads are never idle, so the"
        " broker's share two cores with them. A commit takes three times what the same bytes take alone; with"
        " priority over the client the same broker is 40 % faster (ADR 0014)."
    ),
    "one consumer reading back *": "The mock cluster reads from memory, Semel from files.",
    "eight producers, one record per request *": (
        "Five requests at a time from each leave few to share a commit, and a request costs some 40 µs in"
        " Python (ADR 0014)."
    ),
    "raw client, *": (
        "A transaction is two requests and one flush, the plain write one request and one flush. Here a"
        " flush is so quick that the second request is what counts."
    ),
    "* librdkafka producers, *": _FLOOR,
    "one librdkafka producer, *": _FLOOR,
    "a journal topic with one transaction left open *": "The two topics are read in turn, not at once.",
    "Spark: *": (
        "A Python source of ready-made Arrow batches reaches what is told beside it. Fetching and decoding"
        " takes the worker some 60 ns of a row and the broker as much (ADR 0031), on the same two cores."
    ),
    "ready with *": "Most of a start is the import of Python's modules.",
    "resident memory *": "Python's modules and the tails of partitions are in memory.",
}
"""By the row, as a pattern; the first that fits."""
UNKNOWN = "nobody has looked into it yet"


def why(what: str) -> str:
    """The reason for a row that is not reached."""
    return next((text for pattern, text in WHY.items() if fnmatchcase(what, pattern)), UNKNOWN)
