"""Why targets are not met: the cause in the design, for each target that may be missed."""

from fnmatch import fnmatchcase

_REQUEST = (
    "A request costs Semel about 40 µs of one core, because its rules run in Python (ADR 0014), and"
    " librdkafka sends one request per partition and two more per transaction."
)
_FLOOR = (
    "The mock cluster stores nothing and is compiled code. Semel writes and flushes every commit (the"
    " duration of a flush is given above), and a request costs about 40 µs of one core in Python (ADR"
    " 0014)."
)
_PYTHON_ROWS = (
    "Every row passes from Java through a Python process and back, which Spark's own connector does not need."
    " The rate of a Python source of prebuilt batches is given with the Spark targets."
)
_FRESH_MEMORY = (
    "Semel flushes before it answers, and Kafka with its default configuration does not. On a virtual machine"
    " that returns freed memory to its host, allocating pages costs more than copying into them (ADR 0014)."
)

WHY = {
    "small batches, *": (
        "Both queries take most of a small batch in Spark itself: planning, two logs in the checkpoint, a"
        " job. Ours commits a transaction for it, and its function runs in Python, which costs about a"
        " hundred calls between Python and Java. Before the first row, Spark starts a Python process each to"
        " find the format, to ask for its columns, to plan the batches, and to plan the reading; for its"
        " connector only the first."
    ),
    "with ACLs, *": (
        "A principal's rights are remembered, and looked up for each resource of a request. The section shows"
        " what that costs in processor time, and by how much two brokers without ACLs differ in the same run."
    ),
    "with a console and 50 browsers, *": (
        "Broker, producer, console and browsers are four processes on two cores; the console alone takes a"
        " fifth of a core. Its long polls and its samples of 50,000 partitions are answered between other"
        " requests, in slices. Medians differ by a few percent; the slowest requests are those that meet a"
        " slice or wait for a core."
    ),
    "cluster, processor time of a transaction *": (
        "Processor time follows the number of messages. On one broker, a transaction of librdkafka is three"
        " requests, and all producers share commits. On several, each leader gets a request and commits its"
        " part, and the coordinator loads partitions of others to end the transaction, and tells their"
        " owners. Ends change partitions that their owners write to all the time, so some commits conflict"
        " and are decided again. The section shows how many commits and conflicts a transaction costs."
    ),
    "cluster, kill -9 of a broker: longest wait, ms": (
        "The lease of 3 seconds, up to one second until another broker looks, then the others forget their"
        " copies and divide the shards, and clients ask for the new leaders."
    ),
    "cluster, planned restart of a broker: longest wait, ms": (
        "A stopping broker gives its shards away, and tells clients for half a second where to go. The next"
        " owner loads open transactions before it serves, and librdkafka asks for metadata, connects to the"
        " new leader and sends again, on two cores that the starting process uses too."
    ),
    "cluster, processor time of a megabyte *": (
        "Each broker commits and uploads what it receives, so the same bytes are more and smaller commits."
    ),
    "a producer beside bulk: p99*": (
        "A request waits for the commit in progress and for its own, each of which writes and flushes up"
        " to 8 MiB. Ten clients that write as fast as they can keep the disk busy, and on this machine"
        " both cores too. Smaller commits (`semel.tick.bytes.max`) shorten the wait and slow down bulk"
        " writes."
    ),
    "a producer beside *: p99*": (
        "A request takes a millisecond on an idle broker. Beside other clients it waits for its turn: a few"
        " slices or commits of some milliseconds each, on a core that the attacking process also uses."
    ),
    "*: transactions per second, over mock's": _FLOOR,
    "librdkafka, *, 1 producer: transactions per second, over kafka's": (
        "More than half of such a transaction is the client's own time, which is the same for both. Where"
        " noted above, the target is more than the client reaches with the mock cluster."
        f" {_REQUEST} Kafka with its default configuration never waits for the disk."
    ),
    "*: p99, over kafka's": (
        "Where noted above, a quarter of Kafka's p99 is less than the client's median with the mock"
        " cluster. The disk is not the cause: a broker that writes nothing (`--memory`) has the same p99."
        " Every 100 ms, the store's thread applies recent commits to the ledger for some milliseconds and"
        " competes with the event loop for the interpreter lock; a transaction at that moment is delayed"
        " several times."
    ),
    "*, 1 producer: transactions per second, over kafka's": (
        "The broker needs about 80 µs of one core, in Python, for each partition of a transaction, and"
        " that is most of the time. Without a disk (`--memory`) it is a fifth to a quarter faster."
    ),
    "*, 8 producers: transactions per second, over kafka's": (
        "Semel's rules run on one core, which is saturated, while Kafka uses what the producers leave of two."
        " Without a disk (`--memory`) Semel is up to a third faster, so most of the time is Python's."
    ),
    "overhead of a transaction, *, 1 producer: share of the throughput that is lost": (
        "A commit needs two more requests than the plain write, and the client waits for each. The client"
        " alone loses about as much with the mock cluster, as noted above."
    ),
    "overhead of a transaction, *: share of the throughput that is lost": (
        "A commit needs two more requests than the plain write. Whether client or broker is the bottleneck"
        " with several producers was not measured."
    ),
    "overhead of a transaction, *: less Apache Kafka's": (
        "Overhead is relative to the rate without transactions, which is given above for both. A broker"
        " that is slow without transactions loses little by them, or even gains. Why several librdkafka"
        " producers write that slowly to Kafka was not measured."
    ),
    "from commit to visible, *": "A reader needed more than one request to find a committed record.",
    "a producer hangs, *": "The reader had not received the last records when the hanging transaction ended.",
    "bulk, *: produce, over kafka's without a flush": _FRESH_MEMORY,
    "bulk, *: consume, over kafka's without a flush": (
        "Kafka sends files with sendfile. Semel reads them into its own buffer, because it stamps offsets"
        " into the batches, and sends the buffer: two copies by the kernel, and a buffer that is cleared"
        " first (ADR 0033)."
    ),
    "Spark, *": _PYTHON_ROWS,
    "ready when new, over kafka's": "Most of the startup time is spent on importing Python modules.",
    "memory *, over kafka's": "Python modules and the tails of partitions are kept in memory.",
    "one idempotent producer, *": (
        "The client's two threads are never idle, so the broker's threads compete with them for two cores. A"
        " commit takes three times as long as the same bytes take on an idle machine. With priority over the"
        " client, the same broker is 40 % faster (ADR 0014)."
    ),
    "one consumer reading back *": "The mock cluster reads from memory, Semel from files.",
    "eight producers, one record per request *": (
        "With five requests in flight per producer, few requests share a commit, and each request costs about"
        " 40 µs in Python (ADR 0014)."
    ),
    "raw client, *": (
        "A transaction needs two requests and one flush, the plain write one request and one flush."
        " Flushes are so fast on this machine that the second request dominates."
    ),
    "* librdkafka producers, *": _FLOOR,
    "one librdkafka producer, *": _FLOOR,
    "a journal topic with one transaction left open *": "The two topics are read in turn, not concurrently.",
    "Spark: *": (
        "The rate of a Python source of prebuilt Arrow batches is given beside it. Fetching and decoding"
        " costs the worker about 60 ns per row and the broker as much (ADR 0031), on the same two cores."
    ),
    "cluster, processor time of PostgreSQL with a snapshot, *": (
        "Pages whose old versions cannot be removed fill up, so more than half of the updates go to another"
        " page and get new entries in indexes, instead of one in sixteen. Autovacuum reads the tables once a"
        " minute and removes nothing. A search between two generations of a row looks at more versions (ADR"
        " 0052)."
    ),
    "ready with *": "Most of the startup time is spent on importing Python modules.",
    "resident memory *": "Python modules and the tails of partitions are kept in memory.",
}
"""Reasons by a pattern for the name of the row; the first match is used."""
UNKNOWN = "not investigated yet"


def why(what: str) -> str:
    """Return the reason why a target is not met."""
    return next((text for pattern, text in WHY.items() if fnmatchcase(what, pattern)), UNKNOWN)
