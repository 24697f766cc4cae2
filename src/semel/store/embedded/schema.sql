-- The tables of the embedded ledger. Every table is STRICT, and its rows are checked against what the core promises.
-- Values that a client may choose freely (timestamps, offsets it commits) are only checked for their type.

-- What the ledger records of itself: schema_version, cluster_id, the id of the store that WAL and chunks carry too
-- (store_id), whether unflushed writes may be lost after a start (boot_id, clean_stop, term), the commit up to which
-- ledger and chunks are flushed (checkpointed), the size of the WAL's files once they exist (wal_bytes), and the chunks
-- that cannot be proven to be this store's (unproven_chunks, a JSON array).
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row: the counters of the whole cluster, and its only feature. commit_number grows by one with every commit.
-- sqlite_checkpoints counts how often SQLite's log was moved into the database; it is odd during such a move.
CREATE TABLE cluster (
    only_one            INTEGER NOT NULL PRIMARY KEY CHECK (only_one = 1),
    commit_number       INTEGER NOT NULL CHECK (commit_number >= 0),
    next_producer_id    INTEGER NOT NULL CHECK (next_producer_id >= 0),
    next_partition_id   INTEGER NOT NULL CHECK (next_partition_id >= 1),
    transaction_version INTEGER NOT NULL CHECK (transaction_version >= 0),
    features_epoch      INTEGER NOT NULL CHECK (features_epoch >= 0),
    sqlite_checkpoints  INTEGER NOT NULL CHECK (sqlite_checkpoints >= 0)
) STRICT;

-- What administrators have decided for the whole cluster: kind is acl, user, quota, config or secret.
-- name identifies it, and body is its value; both are JSON.
CREATE TABLE policies (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- Topics that exist. configs is a JSON object of the values that were set, without defaults.
CREATE TABLE topics (
    name       TEXT NOT NULL PRIMARY KEY,
    topic_id   BLOB NOT NULL UNIQUE CHECK (length(topic_id) = 16),
    partitions INTEGER NOT NULL CHECK (partitions >= 1),
    configs    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Partitions that exist. partition_id stands for (topic_id, partition_index) in the tables below and is never reused,
-- so rows that outlive their partition cannot be taken for another's. open_transactions is packed: pairs of first
-- offset and producer, ordered by offset. Below cleaned_offset compaction has seen every record; compactions counts
-- how often it replaced batches.
CREATE TABLE partitions (
    partition_id        INTEGER NOT NULL PRIMARY KEY CHECK (partition_id >= 1),
    topic_id            BLOB NOT NULL,
    partition_index     INTEGER NOT NULL CHECK (partition_index >= 0),
    log_start_offset    INTEGER NOT NULL CHECK (log_start_offset >= 0),
    high_watermark      INTEGER NOT NULL CHECK (high_watermark >= log_start_offset),
    peak_timestamp      INTEGER NOT NULL,
    size_bytes          INTEGER NOT NULL CHECK (size_bytes >= 0),
    open_transactions   BLOB NOT NULL,
    last_aborted_offset INTEGER NOT NULL CHECK (last_aborted_offset >= -1),
    cleaned_offset      INTEGER NOT NULL CHECK (cleaned_offset >= 0),
    compactions         INTEGER NOT NULL CHECK (compactions >= 0),
    UNIQUE (topic_id, partition_index)
) STRICT;

-- Batches ordered by offset, and their locations. peak_timestamp is the largest max_timestamp up to and including
-- this batch, so it never falls and allows a binary search by time. A batch that compaction emptied has no row, so
-- offsets may have gaps.
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

-- Batches of open transactions in partitions with journal visibility, in the order of staging. They have no offsets.
-- A commit assigns offsets and moves the rows to batches, an abort moves them to dropped. The bytes stay in place.
CREATE TABLE staged (
    stage_number  INTEGER NOT NULL PRIMARY KEY,
    partition_id  INTEGER NOT NULL,
    producer_id   INTEGER NOT NULL CHECK (producer_id >= 0),
    offsets       INTEGER NOT NULL CHECK (offsets >= 1),
    max_timestamp INTEGER NOT NULL,
    chunk_id      INTEGER NOT NULL CHECK (chunk_id >= 1),
    position      INTEGER NOT NULL CHECK (position >= 0),
    length        INTEGER NOT NULL CHECK (length >= 1)
) STRICT;

-- For the end of a transaction.
CREATE INDEX staged_by_producer ON staged (partition_id, producer_id);

-- Work for the sweep: bytes of staged batches that will never be read, and of batches that compaction replaced.
CREATE TABLE dropped (
    chunk_id INTEGER NOT NULL CHECK (chunk_id >= 1),
    position INTEGER NOT NULL CHECK (position >= 0),
    length   INTEGER NOT NULL CHECK (length >= 1),
    PRIMARY KEY (chunk_id, position)
) STRICT, WITHOUT ROWID;

-- Aborted transactions of partitions with marker visibility, for readers that must skip them. last_stable_offset is
-- that of the partition after the abort: it never falls from one marker to the next.
CREATE TABLE aborted (
    partition_id       INTEGER NOT NULL,
    marker_offset      INTEGER NOT NULL CHECK (marker_offset >= 0),
    first_offset       INTEGER NOT NULL CHECK (first_offset BETWEEN 0 AND marker_offset),
    producer_id        INTEGER NOT NULL CHECK (producer_id >= 0),
    last_stable_offset INTEGER NOT NULL CHECK (last_stable_offset >= 0),
    PRIMARY KEY (partition_id, marker_offset)
) STRICT, WITHOUT ROWID;

-- How many bytes of a chunk are referenced by batches, staged and dropped. A chunk without a row is an orphan.
-- end_position is the end of the last referenced range, checkpointed_end the part of it that is certainly flushed.
CREATE TABLE chunks (
    chunk_id         INTEGER NOT NULL PRIMARY KEY CHECK (chunk_id >= 1),
    live_bytes       INTEGER NOT NULL CHECK (live_bytes >= 0),
    end_position     INTEGER NOT NULL CHECK (end_position >= 0),
    checkpointed_end INTEGER NOT NULL CHECK (checkpointed_end >= 0)
) STRICT;

-- What a partition remembers of a producer. recent_batches is packed, at most five. staged is packed too: the total
-- that the open transaction has staged; empty if nothing.
CREATE TABLE producers (
    partition_id             INTEGER NOT NULL,
    producer_id              INTEGER NOT NULL CHECK (producer_id >= 0),
    epoch                    INTEGER NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    recent_batches           BLOB NOT NULL,
    last_timestamp           INTEGER NOT NULL,
    seen_ms                  INTEGER NOT NULL,
    coordinator_epoch        INTEGER NOT NULL,
    transaction_first_offset INTEGER NOT NULL CHECK (transaction_first_offset >= -1),
    staged                   BLOB NOT NULL,
    PRIMARY KEY (partition_id, producer_id)
) STRICT, WITHOUT ROWID;

-- Committed offsets of groups, by topic name as in the protocol.
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

-- For deleting a topic with every group's offsets on it.
CREATE INDEX offsets_by_topic ON offsets (topic);

-- Offsets that become the group's position when a transaction commits. position is their order within the group; it
-- may have gaps. is_superseded: a later commit has overtaken this partition.
CREATE TABLE pending_offsets (
    group_id         TEXT NOT NULL,
    position         INTEGER NOT NULL CHECK (position >= 0),
    producer_id      INTEGER NOT NULL,
    topic            TEXT NOT NULL,
    partition_index  INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    leader_epoch     INTEGER NOT NULL,
    metadata         TEXT NOT NULL,
    committed_ms     INTEGER NOT NULL,
    is_superseded    INTEGER NOT NULL CHECK (is_superseded IN (0, 1)),
    PRIMARY KEY (group_id, position)
) STRICT, WITHOUT ROWID;

-- For deleting a topic with its pending offsets.
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic);

-- Transactional ids. partitions is a JSON array of pairs of topic id (hexadecimal) and index, groups one of group ids,
-- shares one of share-partitions (topic id, index, group id): the contents of the open transaction. Times are in
-- milliseconds, -1 is none.
CREATE TABLE transactions (
    transactional_id     TEXT NOT NULL PRIMARY KEY,
    producer_id          INTEGER NOT NULL CHECK (producer_id >= 0),
    epoch                INTEGER NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    timeout_ms           INTEGER NOT NULL,
    state                TEXT NOT NULL CHECK (state IN ('Empty', 'Ongoing', 'CompleteCommit', 'CompleteAbort')),
    partitions           TEXT NOT NULL,
    groups               TEXT NOT NULL,
    started_ms           INTEGER NOT NULL,
    updated_ms           INTEGER NOT NULL,
    deadline_ms          INTEGER NOT NULL,
    previous_producer_id INTEGER NOT NULL CHECK (previous_producer_id >= -1),
    last_epoch           INTEGER NOT NULL CHECK (last_epoch BETWEEN -1 AND 32767),
    version              INTEGER NOT NULL,
    term                 INTEGER NOT NULL,
    is_two_phase         INTEGER NOT NULL CHECK (is_two_phase IN (0, 1)),
    prepared_epoch       INTEGER NOT NULL CHECK (prepared_epoch BETWEEN -1 AND 32767),
    shares               TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- For a start, which asks for open transactions. Only those rows are in it, so a transaction that begins and ends
-- within one commit does not touch it.
CREATE INDEX ongoing_transactions ON transactions (transactional_id) WHERE state = 'Ongoing';

-- Groups. body is the whole group, packed by the core; the other columns are for listing.
CREATE TABLE groups (
    group_id      TEXT NOT NULL PRIMARY KEY,
    kind          TEXT NOT NULL,
    protocol_type TEXT NOT NULL,
    state         TEXT NOT NULL,
    body          BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Share-partitions: what a share group has done with the records of one partition. Below start_offset everything is
-- settled; -1 if no member has fetched yet. runs is a JSON array of runs of offsets in the same state, without gaps: the
-- first and the last offset, the state (0 available, 2 acknowledged, 4 archived, 16 pending), how often they were
-- delivered, and what the end of a transaction makes of pending ones: its producer, whether a commit makes them
-- acknowledged or archived, whether an abort makes them archived or available, and which member has acknowledged them.
CREATE TABLE shares (
    topic_id        BLOB NOT NULL,
    partition_index INTEGER NOT NULL CHECK (partition_index >= 0),
    group_id        TEXT NOT NULL,
    start_offset    INTEGER NOT NULL CHECK (start_offset >= -1),
    epoch           INTEGER NOT NULL CHECK (epoch >= 0),
    runs            TEXT NOT NULL,
    PRIMARY KEY (topic_id, partition_index, group_id)
) STRICT, WITHOUT ROWID;

-- Work for the sweep: batches of this partition that end below this offset, and the transactions that were aborted
-- there. The largest possible offset means that the partition was deleted, with all its batches and producers.
CREATE TABLE leftovers (
    partition_id INTEGER NOT NULL PRIMARY KEY,
    below_offset INTEGER NOT NULL CHECK (below_offset >= 0)
) STRICT;

-- Views for operators and tools. They may be read while a broker runs, and Semel itself does not use them. Unsynced
-- work appears as soon as it is in the ledger, which takes a moment. Times are milliseconds of the broker's clock.

-- Open transactions with their start and timeout: one row for each partition, or one row without a partition.
-- first_offset is where the transaction began to write; none if it did not write there, or if its batches are staged,
-- as in partitions with journal visibility.
CREATE VIEW open_transactions AS
SELECT
    transactions.transactional_id, transactions.producer_id, transactions.epoch, transactions.state,
    transactions.started_ms, nullif(transactions.deadline_ms, -1) AS deadline_ms, transactions.is_two_phase,
    topics.name AS topic, partitions.partition_index,
    nullif(producers.transaction_first_offset, -1) AS first_offset
FROM transactions
LEFT JOIN json_each(transactions.partitions) AS joined
LEFT JOIN topics ON lower(hex(topics.topic_id)) = json_extract(joined.value, '$[0]')
LEFT JOIN partitions
    ON partitions.topic_id = topics.topic_id
    AND partitions.partition_index = json_extract(joined.value, '$[1]')
LEFT JOIN producers
    ON producers.partition_id = partitions.partition_id
    AND producers.producer_id = transactions.producer_id
WHERE transactions.state = 'Ongoing';

-- Why a read_committed consumer makes no progress: the partitions with an open transaction, and the transaction that
-- holds back readers. transactional_id and started_ms are none if no transactional id has that producer: its
-- transaction hangs.
CREATE VIEW blocked_partitions AS
SELECT
    topics.name AS topic, partitions.partition_index,
    max(min(producers.transaction_first_offset), partitions.log_start_offset) AS last_stable_offset,
    partitions.high_watermark, producers.producer_id, transactions.transactional_id, transactions.started_ms
FROM partitions
JOIN topics ON topics.topic_id = partitions.topic_id
JOIN producers
    ON producers.partition_id = partitions.partition_id AND producers.transaction_first_offset >= 0
LEFT JOIN transactions ON transactions.state = 'Ongoing' AND transactions.producer_id = producers.producer_id
WHERE length(partitions.open_transactions) > 0
GROUP BY partitions.partition_id;

-- Committed offsets of groups, and their lag behind the end of the log. The end is none if the topic does not have the
-- partition.
CREATE VIEW committed_offsets AS
SELECT
    offsets.group_id, offsets.topic, offsets.partition_index, offsets.committed_offset, offsets.metadata,
    offsets.committed_ms, partitions.high_watermark,
    partitions.high_watermark - offsets.committed_offset AS behind
FROM offsets
LEFT JOIN topics ON topics.name = offsets.topic
LEFT JOIN partitions
    ON partitions.topic_id = topics.topic_id AND partitions.partition_index = offsets.partition_index;

-- Offsets that wait for the end of a transaction, and that transaction. While a partition is listed, a consumer that
-- requires stable offsets waits. is_superseded: a later commit has overtaken this one, which will not count.
CREATE VIEW pending AS
SELECT
    pending_offsets.group_id, pending_offsets.topic, pending_offsets.partition_index,
    pending_offsets.committed_offset, pending_offsets.committed_ms, pending_offsets.is_superseded,
    pending_offsets.producer_id, transactions.transactional_id
FROM pending_offsets
LEFT JOIN transactions
    ON transactions.state = 'Ongoing' AND transactions.producer_id = pending_offsets.producer_id;
