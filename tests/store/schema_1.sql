-- The tables of the embedded ledger. Every table is STRICT and its rows are checked for what the core promises;
-- what a client may choose freely (timestamps, offsets it commits) is not checked beyond its type.

-- What this ledger is: schema_version, cluster_id, and what is needed to tell after a start whether writes
-- that were not flushed may be lost (boot_id, clean_stop, term).
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row: the counters of the whole cluster. commit_number grows by one with every commit.
CREATE TABLE cluster (
    only_one          INTEGER NOT NULL PRIMARY KEY CHECK (only_one = 1),
    commit_number     INTEGER NOT NULL CHECK (commit_number >= 0),
    next_producer_id  INTEGER NOT NULL CHECK (next_producer_id >= 0),
    next_partition_id INTEGER NOT NULL CHECK (next_partition_id >= 1)
) STRICT;

-- Topics that exist. configs is a JSON object of what was set, never of defaults.
CREATE TABLE topics (
    name       TEXT NOT NULL PRIMARY KEY,
    topic_id   BLOB NOT NULL UNIQUE CHECK (length(topic_id) = 16),
    partitions INTEGER NOT NULL CHECK (partitions >= 1),
    configs    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Partitions that exist, as they are now. partition_id is short for (topic_id, partition_index) in the tables
-- below and is never given twice, so that rows which outlive their partition belong to nobody.
CREATE TABLE partitions (
    partition_id      INTEGER NOT NULL PRIMARY KEY CHECK (partition_id >= 1),
    topic_id          BLOB NOT NULL,
    partition_index   INTEGER NOT NULL CHECK (partition_index >= 0),
    log_start_offset  INTEGER NOT NULL CHECK (log_start_offset >= 0),
    high_watermark    INTEGER NOT NULL CHECK (high_watermark >= log_start_offset),
    peak_timestamp    INTEGER NOT NULL,
    size_bytes        INTEGER NOT NULL CHECK (size_bytes >= 0),
    open_transactions BLOB NOT NULL,
    UNIQUE (topic_id, partition_index)
) STRICT;

-- Batches in the order of their offsets, and where their bytes lie. peak_timestamp is the largest max_timestamp
-- up to and including this batch, so it never falls and a search by time can halve its way.
CREATE TABLE batches (
    partition_id   INTEGER NOT NULL,
    base_offset    INTEGER NOT NULL CHECK (base_offset >= 0),
    last_offset    INTEGER NOT NULL CHECK (last_offset >= base_offset),
    max_timestamp  INTEGER NOT NULL,
    peak_timestamp INTEGER NOT NULL CHECK (peak_timestamp >= max_timestamp),
    chunk_id       INTEGER NOT NULL CHECK (chunk_id >= 1),
    position       INTEGER NOT NULL CHECK (position >= 0),
    length         INTEGER NOT NULL CHECK (length >= 1),
    PRIMARY KEY (partition_id, base_offset)
) STRICT, WITHOUT ROWID;

-- How many bytes of a chunk rows of batches point at. A chunk that is not in here is an orphan.
CREATE TABLE chunks (
    chunk_id   INTEGER NOT NULL PRIMARY KEY CHECK (chunk_id >= 1),
    live_bytes INTEGER NOT NULL CHECK (live_bytes >= 0)
) STRICT;

-- What a partition remembers of a producer. recent_batches is packed, at most five.
CREATE TABLE producers (
    partition_id             INTEGER NOT NULL,
    producer_id              INTEGER NOT NULL CHECK (producer_id >= 0),
    epoch                    INTEGER NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    recent_batches           BLOB NOT NULL,
    last_timestamp           INTEGER NOT NULL,
    seen_ms                  INTEGER NOT NULL,
    coordinator_epoch        INTEGER NOT NULL,
    transaction_first_offset INTEGER NOT NULL CHECK (transaction_first_offset >= -1),
    PRIMARY KEY (partition_id, producer_id)
) STRICT, WITHOUT ROWID;

-- What groups have committed, by topic name as on the wire.
CREATE TABLE offsets (
    group_id         TEXT NOT NULL,
    topic            TEXT NOT NULL,
    partition_index  INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    leader_epoch     INTEGER NOT NULL,
    metadata         TEXT NOT NULL,
    committed_ms     INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic, partition_index)
) STRICT, WITHOUT ROWID;

-- For the deletion of a topic, which takes every group's offsets on it along.
CREATE INDEX offsets_by_topic ON offsets (topic);

-- Groups. body is the whole group, packed by the core; the columns beside it are for listing.
CREATE TABLE groups (
    group_id      TEXT NOT NULL PRIMARY KEY,
    kind          TEXT NOT NULL,
    protocol_type TEXT NOT NULL,
    state         TEXT NOT NULL,
    member_count  INTEGER NOT NULL CHECK (member_count >= 0),
    body          BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Work for the sweep: batches of this partition that lie wholly below this offset are to be deleted. The largest
-- offset there is means that the partition is gone, with all its batches and producers.
CREATE TABLE leftovers (
    partition_id INTEGER NOT NULL PRIMARY KEY,
    below_offset INTEGER NOT NULL CHECK (below_offset >= 0)
) STRICT;
