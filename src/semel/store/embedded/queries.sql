-- Every statement of the embedded ledger, by name. A statement with one row of question marks in parentheses
-- after VALUES takes any number of rows: semel.store.embedded.queries repeats the row and adds rows of NULLs, which the
-- condition on column1 skips.

-- name: settings
-- The settings of every connection. Commits without the WAL (see semel.store.embedded.wal) need FULL; in WAL mode anything less
-- loses commits in a power failure. Memory maps are off: a disk error in one is a signal, not an error. The cache is in
-- KiB.
PRAGMA synchronous = FULL;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -16384;

-- name: flush_commits
-- From now on a commit is flushed when it ends.
PRAGMA synchronous = FULL;

-- name: leave_commits
-- From now on a commit is not flushed. In WAL mode a crash leaves all commits up to some commit.
PRAGMA synchronous = NORMAL;

-- name: use_wal
-- Readers and the writer do not block each other.
PRAGMA journal_mode = WAL;

-- name: read_synchronous
-- Whether commits are flushed: 2 is FULL.
PRAGMA synchronous;

-- name: begin
-- Begins a commit. Immediate, so that it cannot fail later for lack of the write lock.
BEGIN IMMEDIATE;

-- name: begin_reading
-- Everything read until end is of the same commit.
BEGIN;

-- name: end
-- Commits everything since begin, together.
COMMIT;

-- name: undo
-- Rolls back everything since begin.
ROLLBACK;

-- name: read_meta
-- Everything that the ledger records of itself.
SELECT name, value FROM meta;

-- name: write_meta
-- Records something about the ledger.
INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: has_schema
-- Whether the tables exist.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'meta';

-- name: first_counters
-- The counters of a new cluster.
INSERT INTO cluster (
    only_one, commit_number, next_producer_id, next_partition_id, transaction_version, features_epoch, sqlite_checkpoints
) VALUES (1, 0, 0, 1, 2, 1, 0);

-- name: read_counters
-- The current counters.
SELECT commit_number, next_producer_id, next_partition_id FROM cluster;

-- name: read_cluster
-- The state of the cluster.
SELECT next_producer_id, transaction_version, features_epoch FROM cluster;

-- name: put_policy
-- Writes the value of a policy.
INSERT INTO policies (kind, name, body) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;

-- name: delete_policy
-- Removes a policy.
DELETE FROM policies WHERE kind = ? AND name = ?;

-- name: policy_row
-- The value of a policy.
SELECT body FROM policies WHERE kind = ? AND name = ?;

-- name: policies_after
-- Policies after a key, in order.
SELECT kind, name, body FROM policies WHERE (kind, name) > (?, ?) ORDER BY kind, name LIMIT ?;

-- name: put_share
-- Writes a share-partition.
INSERT INTO shares (topic_id, partition_index, group_id, start_offset, epoch, runs) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (topic_id, partition_index, group_id) DO UPDATE SET
    start_offset = excluded.start_offset, epoch = excluded.epoch, runs = excluded.runs;

-- name: delete_share
-- Removes a share-partition.
DELETE FROM shares WHERE topic_id = ? AND partition_index = ? AND group_id = ?;

-- name: delete_shares_of_topic
-- Removes the share-partitions of a deleted topic.
DELETE FROM shares WHERE topic_id = ?;

-- name: share_row
-- A share-partition.
SELECT start_offset, epoch, runs FROM shares WHERE topic_id = ? AND partition_index = ? AND group_id = ?;

-- name: write_features
-- Writes the new value of the feature.
UPDATE cluster SET transaction_version = ?, features_epoch = ? WHERE only_one = 1;

-- name: read_sqlite_checkpoints
-- How often SQLite's log was moved into the database, and the number of the last commit.
SELECT sqlite_checkpoints, commit_number FROM cluster;

-- name: write_sqlite_checkpoints
-- Writes how often SQLite's log was moved into the database.
UPDATE cluster SET sqlite_checkpoints = ? WHERE only_one = 1;

-- name: write_counters
-- Writes the new counters; part of every commit.
UPDATE cluster SET commit_number = ?, next_producer_id = ?, next_partition_id = ? WHERE only_one = 1;

-- name: add_topic
-- Adds a new topic.
INSERT INTO topics (name, topic_id, partitions, configs) VALUES (?, ?, ?, ?);

-- name: change_topic
-- Writes the new value of a topic.
UPDATE topics SET partitions = ?, configs = ? WHERE topic_id = ?;

-- name: delete_topic
-- Removes a topic.
DELETE FROM topics WHERE topic_id = ?;

-- name: topic_by_name
-- One topic, by name.
SELECT name, topic_id, partitions, configs FROM topics WHERE name = ?;

-- name: topic_by_id
-- One topic, by id.
SELECT name, topic_id, partitions, configs FROM topics WHERE topic_id = ?;

-- name: topics_after
-- Topics ordered by name, after a given one.
SELECT name, topic_id, partitions, configs FROM topics WHERE name > ? ORDER BY name LIMIT ?;

-- name: partition_row
-- One partition.
SELECT
    partition_id, log_start_offset, high_watermark, peak_timestamp, size_bytes,
    open_transactions, last_aborted_offset, cleaned_offset, compactions
FROM partitions WHERE topic_id = ? AND partition_index = ?;

-- name: count_partitions
-- How many partitions of a topic have rows.
SELECT count(*) FROM partitions WHERE topic_id = ?;

-- name: put_partitions
-- Writes the new values of partitions.
INSERT INTO partitions (
    partition_id, topic_id, partition_index,
    log_start_offset, high_watermark, peak_timestamp, size_bytes, open_transactions, last_aborted_offset,
    cleaned_offset, compactions
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (partition_id) DO UPDATE SET
    log_start_offset = excluded.log_start_offset, high_watermark = excluded.high_watermark,
    peak_timestamp = excluded.peak_timestamp, size_bytes = excluded.size_bytes,
    open_transactions = excluded.open_transactions, last_aborted_offset = excluded.last_aborted_offset,
    cleaned_offset = excluded.cleaned_offset, compactions = excluded.compactions;

-- name: delete_partitions
-- Removes the partitions of a topic. Their batches and producers stay until they are swept.
DELETE FROM partitions WHERE topic_id = ?;

-- name: leave_partitions
-- Notes that everything of a topic's partitions is to be swept.
INSERT INTO leftovers (partition_id, below_offset)
SELECT partition_id, 9223372036854775807 FROM partitions WHERE topic_id = ?
ON CONFLICT (partition_id) DO UPDATE SET below_offset = excluded.below_offset;

-- name: leave_batches
-- Notes that batches below a log start are to be swept.
INSERT INTO leftovers (partition_id, below_offset)
SELECT * FROM (VALUES (?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (partition_id) DO UPDATE SET below_offset = max(below_offset, excluded.below_offset);

-- name: add_batches
-- Appends batches.
INSERT INTO batches (
    partition_id, base_offset, last_offset, max_timestamp, peak_timestamp, chunk_id, position, length
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: leave_replaced
-- Leaves the bytes of batches that compaction replaces to the sweep.
INSERT INTO dropped (chunk_id, position, length)
SELECT chunk_id, position, length FROM batches WHERE (partition_id, base_offset) IN (VALUES (?, ?));

-- name: rewrite_batches
-- Writes batches with fewer records, and their new locations. The peak stays, even if the record that had it is gone: a
-- search then only begins earlier.
UPDATE batches SET
    max_timestamp = new.column3, chunk_id = new.column4, position = new.column5, length = new.column6
FROM (VALUES (?, ?, ?, ?, ?, ?)) AS new
WHERE batches.partition_id = new.column1 AND batches.base_offset = new.column2;

-- name: remove_batches
-- Removes batches that compaction has emptied.
DELETE FROM batches WHERE (partition_id, base_offset) IN (VALUES (?, ?));

-- name: forget_aborted
-- Forgets aborted transactions whose marker compaction removed: nothing else was left of them.
DELETE FROM aborted WHERE (partition_id, marker_offset) IN (VALUES (?, ?));

-- name: stage_batches
-- Keeps batches until the outcome of their transaction is known. SQLite numbers rows upwards.
INSERT INTO staged (partition_id, producer_id, offsets, max_timestamp, chunk_id, position, length)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: commit_staged
-- Moves what a producer staged in a partition to its log, in order from a given offset. The peak is that of the
-- partition so far.
INSERT INTO batches (
    partition_id, base_offset, last_offset, max_timestamp, peak_timestamp, chunk_id, position, length
)
SELECT
    partition_id, :base_offset + end_offset - offsets, :base_offset + end_offset - 1,
    max_timestamp, max(:peak_timestamp, staged_peak), chunk_id, position, length
FROM (
    SELECT
        *,
        sum(offsets) OVER (ORDER BY stage_number) AS end_offset,
        max(max_timestamp) OVER (ORDER BY stage_number) AS staged_peak
    FROM staged WHERE partition_id = :partition_id AND producer_id = :producer_id
);

-- name: drop_staged
-- Leaves what a producer staged in a partition to the sweep.
INSERT INTO dropped (chunk_id, position, length)
SELECT chunk_id, position, length FROM staged WHERE partition_id = ? AND producer_id = ?;

-- name: delete_staged
-- Deletes what a producer staged in a partition.
DELETE FROM staged WHERE partition_id = ? AND producer_id = ?;

-- name: drop_batches
-- Leaves batches that were staged and dropped in one commit to the sweep.
INSERT INTO dropped (chunk_id, position, length)
SELECT * FROM (VALUES (?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: drop_staged_of_topic
-- Leaves what was staged in the partitions of a topic to the sweep.
INSERT INTO dropped (chunk_id, position, length)
SELECT chunk_id, position, length FROM staged
WHERE partition_id IN (SELECT partition_id FROM partitions WHERE topic_id = ?);

-- name: delete_staged_of_topic
-- Deletes what was staged in the partitions of a topic.
DELETE FROM staged WHERE partition_id IN (SELECT partition_id FROM partitions WHERE topic_id = ?);

-- name: add_aborted
-- Adds aborted transactions.
INSERT INTO aborted (partition_id, marker_offset, first_offset, producer_id, last_stable_offset)
SELECT * FROM (VALUES (?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: aborted_between
-- Aborted transactions whose marker is at or after one offset and that began before another, as one JSON array. The
-- last relevant marker is the first one with a last stable offset at or after that other offset.
SELECT json_group_array(json_array(producer_id, first_offset))
FROM (
    SELECT producer_id, first_offset FROM aborted
    WHERE partition_id = :partition_id AND marker_offset >= :first AND first_offset < :before
    AND marker_offset <= coalesce(
        (
            SELECT marker_offset FROM aborted
            WHERE partition_id = :partition_id AND marker_offset >= :first AND last_stable_offset >= :before
            ORDER BY marker_offset LIMIT 1
        ), 9223372036854775807
    )
    ORDER BY first_offset
);

-- name: add_to_chunks
-- Adds the bytes that rows now reference.
INSERT INTO chunks (chunk_id, live_bytes, end_position, checkpointed_end) VALUES (?, ?, ?, 0)
ON CONFLICT (chunk_id) DO UPDATE SET
    live_bytes = live_bytes + excluded.live_bytes, end_position = max(end_position, excluded.end_position);

-- name: checkpoint_chunks
-- Records that all referenced bytes are flushed.
UPDATE chunks SET checkpointed_end = end_position WHERE checkpointed_end < end_position;

-- name: known_chunks
-- The referenced chunks, and up to where each is flushed.
SELECT chunk_id, checkpointed_end FROM chunks;

-- name: forget_chunk
-- Forgets a chunk whose file is missing or not this store's. Its batches are unreadable.
DELETE FROM chunks WHERE chunk_id = ?;

-- name: forget_end
-- Forgets up to where a chunk is flushed.
UPDATE chunks SET checkpointed_end = 0, end_position = 0 WHERE chunk_id = ?;

-- name: check_pages
-- Reads every page and reports what is wrong with the tables; ok if nothing is.
PRAGMA integrity_check(100);

-- name: page_of_counters
-- The page that every commit writes.
SELECT rootpage FROM sqlite_schema WHERE name = 'cluster';

-- name: batches_at_rest
-- All batches that can still be read, including staged ones, in the order of their locations.
SELECT topics.name, partitions.partition_index, batches.base_offset, batches.last_offset,
    batches.chunk_id, batches.position, batches.length
FROM batches
JOIN partitions ON partitions.partition_id = batches.partition_id
JOIN topics ON topics.topic_id = partitions.topic_id
WHERE batches.last_offset >= partitions.log_start_offset
UNION ALL
SELECT topics.name, partitions.partition_index, -1, -1, staged.chunk_id, staged.position, staged.length
FROM staged
JOIN partitions ON partitions.partition_id = staged.partition_id
JOIN topics ON topics.topic_id = partitions.topic_id
ORDER BY 5, 6;

-- name: staged_at_rest
-- All staged batches, by partition and producer in the order of staging.
SELECT partitions.topic_id, partitions.partition_index, staged.producer_id, staged.offsets, staged.max_timestamp,
    staged.chunk_id, staged.position, staged.length
FROM staged
JOIN partitions ON partitions.partition_id = staged.partition_id
ORDER BY partitions.topic_id, partitions.partition_index, staged.producer_id, staged.stage_number;

-- name: aborted_at_rest
-- The aborted transactions of a partition whose markers can still be read.
SELECT aborted.marker_offset, aborted.producer_id, aborted.first_offset, aborted.last_stable_offset
FROM aborted
JOIN partitions ON partitions.partition_id = aborted.partition_id
WHERE partitions.topic_id = ? AND partitions.partition_index = ?
AND aborted.marker_offset >= partitions.log_start_offset;

-- name: take_from_chunk
-- Subtracts bytes that are no longer referenced.
UPDATE chunks SET live_bytes = live_bytes - ? WHERE chunk_id = ?;

-- name: drop_empty_chunk
-- Removes a chunk that is no longer referenced, which makes it an orphan.
DELETE FROM chunks WHERE chunk_id = ? AND live_bytes = 0;

-- name: chunk_references
-- How many bytes of each chunk are referenced.
SELECT chunk_id, live_bytes FROM chunks;

-- name: batches_from
-- A page of batches as one JSON array (each row would release the GIL): from the one that holds an offset, or the
-- next, up to an offset (exclusive).
SELECT json_group_array(json_array(base_offset, last_offset, max_timestamp, chunk_id, position, length))
FROM (
    SELECT * FROM batches
    WHERE partition_id = :partition_id AND base_offset < :before AND base_offset >= coalesce(
        (
            SELECT base_offset FROM batches WHERE partition_id = :partition_id AND base_offset <= :offset
            ORDER BY base_offset DESC LIMIT 1
        ), 0
    )
    ORDER BY base_offset LIMIT :batches_max
);

-- name: batch_at
-- The batch that holds an offset, or the last one before it.
SELECT base_offset, last_offset, peak_timestamp FROM batches
WHERE partition_id = ? AND base_offset <= ? ORDER BY base_offset DESC LIMIT 1;

-- name: first_batch_since
-- The first batch from an offset on that has a record at or after a timestamp.
SELECT base_offset, last_offset, max_timestamp, chunk_id, position, length FROM batches
WHERE partition_id = ? AND base_offset >= ? AND max_timestamp >= ? ORDER BY base_offset LIMIT 1;

-- name: offset_past_bytes
-- Where a partition begins after at least this many bytes are removed from its beginning.
SELECT last_offset + 1 FROM (
    SELECT last_offset,
        sum(length) OVER (ORDER BY base_offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS taken
    FROM batches WHERE partition_id = :partition_id AND base_offset >= :first
) WHERE taken >= :excess LIMIT 1;

-- name: size_between
-- The size of the batches that begin at or after one offset and end before another.
SELECT coalesce(sum(length), 0) FROM batches
WHERE partition_id = :partition_id AND base_offset < :before AND last_offset < :before AND base_offset >= :first;

-- name: put_producers
-- Writes the new producer states.
INSERT INTO producers (
    partition_id, producer_id, epoch, recent_batches,
    last_timestamp, seen_ms, coordinator_epoch, transaction_first_offset, staged
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (partition_id, producer_id) DO UPDATE SET
    epoch = excluded.epoch, recent_batches = excluded.recent_batches,
    last_timestamp = excluded.last_timestamp, seen_ms = excluded.seen_ms,
    coordinator_epoch = excluded.coordinator_epoch,
    transaction_first_offset = excluded.transaction_first_offset, staged = excluded.staged;

-- name: delete_producers
-- Deletes producer states.
DELETE FROM producers WHERE (partition_id, producer_id) IN (VALUES (?, ?));

-- name: producer_row
-- What one partition remembers of one producer.
SELECT epoch, recent_batches, last_timestamp, seen_ms, coordinator_epoch, transaction_first_offset, staged
FROM producers
WHERE producer_id = :producer_id AND partition_id = (
    SELECT partition_id FROM partitions WHERE topic_id = :topic_id AND partition_index = :partition_index
);

-- name: producers_of
-- All producer states of a partition.
SELECT
    producer_id, epoch, recent_batches, last_timestamp, seen_ms,
    coordinator_epoch, transaction_first_offset, staged
FROM producers
WHERE partition_id = (SELECT partition_id FROM partitions WHERE topic_id = ? AND partition_index = ?)
ORDER BY producer_id;

-- name: producers_after
-- A page of all producers, ordered by key, as one JSON array. There is no index by time, because it would be written
-- with every batch and used every ten minutes.
SELECT json_group_array(json_array(partition_id, producer_id, seen_ms, is_open))
FROM (
    SELECT
        partition_id, producer_id, seen_ms,
        transaction_first_offset >= 0 OR length(staged) > 0 AS is_open
    FROM producers
    WHERE (partition_id, producer_id) > (?, ?) ORDER BY partition_id, producer_id LIMIT ?
);

-- name: partition_key
-- The topic and index of a partition_id.
SELECT topic_id, partition_index FROM partitions WHERE partition_id = ?;

-- name: put_offsets
-- Writes committed offsets.
INSERT INTO offsets (
    group_id, topic, partition_index, committed_offset, leader_epoch, metadata, committed_ms
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (group_id, topic, partition_index) DO UPDATE SET
    committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
    metadata = excluded.metadata, committed_ms = excluded.committed_ms;

-- name: delete_offsets
-- Deletes committed offsets.
DELETE FROM offsets WHERE (group_id, topic, partition_index) IN (VALUES (?, ?, ?));

-- name: delete_offsets_of_topic
-- Deletes every group's offsets of a topic.
DELETE FROM offsets WHERE topic = ?;

-- name: delete_offsets_of_group
-- Deletes all offsets of a group.
DELETE FROM offsets WHERE group_id = ?;

-- name: offset_row
-- A group's committed offset in one partition.
SELECT committed_offset, leader_epoch, metadata, committed_ms
FROM offsets WHERE group_id = ? AND topic = ? AND partition_index = ?;

-- name: offsets_of_group
-- Everything a group has committed.
SELECT topic, partition_index, committed_offset, leader_epoch, metadata, committed_ms
FROM offsets WHERE group_id = ? ORDER BY topic, partition_index;

-- name: put_pending
-- Writes the pending offsets of groups.
INSERT INTO pending_offsets (
    group_id, position, producer_id, topic, partition_index,
    committed_offset, leader_epoch, metadata, committed_ms, is_superseded
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: delete_pending
-- Deletes the pending offsets of groups.
DELETE FROM pending_offsets WHERE group_id IN (VALUES (?));

-- name: delete_pending_of_topic
-- Deletes the pending offsets of a topic.
DELETE FROM pending_offsets WHERE topic = ?;

-- name: pending_of_group
-- All pending offsets of a group.
SELECT
    producer_id, topic, partition_index, committed_offset, leader_epoch, metadata, committed_ms, is_superseded
FROM pending_offsets WHERE group_id = ? ORDER BY position;

-- name: put_transactions
-- Writes the new values of transactional ids.
INSERT INTO transactions (
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms,
    deadline_ms, previous_producer_id, last_epoch, version, term, is_two_phase, prepared_epoch, shares
)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (transactional_id) DO UPDATE SET
    producer_id = excluded.producer_id, epoch = excluded.epoch, timeout_ms = excluded.timeout_ms,
    state = excluded.state, partitions = excluded.partitions, groups = excluded.groups,
    started_ms = excluded.started_ms, updated_ms = excluded.updated_ms, deadline_ms = excluded.deadline_ms,
    previous_producer_id = excluded.previous_producer_id, last_epoch = excluded.last_epoch,
    version = excluded.version, term = excluded.term, is_two_phase = excluded.is_two_phase,
    prepared_epoch = excluded.prepared_epoch, shares = excluded.shares;

-- name: delete_transactions
-- Deletes transactional ids.
DELETE FROM transactions WHERE transactional_id IN (VALUES (?));

-- name: transaction_row
-- One transactional id.
SELECT
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms,
    deadline_ms, previous_producer_id, last_epoch, version, term, is_two_phase, prepared_epoch, shares
FROM transactions WHERE transactional_id = ?;

-- name: transactions_after
-- Transactional ids in order.
SELECT
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms,
    deadline_ms, previous_producer_id, last_epoch, version, term, is_two_phase, prepared_epoch, shares
FROM transactions
WHERE transactional_id > ? ORDER BY transactional_id LIMIT ?;

-- name: ongoing_after
-- Transactional ids with an open transaction, in order. They have an index of their own.
SELECT
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms,
    deadline_ms, previous_producer_id, last_epoch, version, term, is_two_phase, prepared_epoch, shares
FROM transactions INDEXED BY ongoing_transactions
WHERE transactional_id > ? AND state = 'Ongoing' ORDER BY transactional_id LIMIT ?;

-- name: transaction_times_after
-- A page of all transactional ids, in order, as one JSON array. There is no index by time, because it would be
-- written with every transaction and used every hour.
SELECT json_group_array(json_array(transactional_id, state, updated_ms))
FROM (
    SELECT transactional_id, state, updated_ms FROM transactions
    WHERE transactional_id > ? ORDER BY transactional_id LIMIT ?
);

-- name: put_groups
-- Writes the new values of groups.
INSERT INTO groups (group_id, kind, protocol_type, state, body)
SELECT * FROM (VALUES (?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
ON CONFLICT (group_id) DO UPDATE SET
    kind = excluded.kind, protocol_type = excluded.protocol_type, state = excluded.state,
    body = excluded.body;

-- name: delete_group
-- Removes a group.
DELETE FROM groups WHERE group_id = ?;

-- name: group_row
-- One group.
SELECT kind, body FROM groups WHERE group_id = ?;

-- name: counts
-- How many partitions, groups and transactional ids there are.
SELECT
    (SELECT count(*) FROM partitions), (SELECT count(*) FROM groups), (SELECT count(*) FROM transactions);

-- name: groups_after
-- Groups ordered by id, including those that only have offsets. The ids in offsets are found by skipping from one to
-- the next, without reading every offset.
WITH RECURSIVE committed (group_id) AS (
    SELECT min(group_id) FROM offsets WHERE group_id > :after
    UNION ALL
    SELECT (SELECT min(offsets.group_id) FROM offsets WHERE offsets.group_id > committed.group_id)
    FROM committed WHERE committed.group_id IS NOT NULL
    LIMIT :groups_max
),
ids (group_id) AS (
    SELECT * FROM (SELECT group_id FROM groups WHERE group_id > :after ORDER BY group_id LIMIT :groups_max)
    UNION
    SELECT group_id FROM committed WHERE group_id IS NOT NULL
)
SELECT ids.group_id, coalesce(kind, ''), coalesce(protocol_type, ''), coalesce(state, '')
FROM ids LEFT JOIN groups USING (group_id) ORDER BY ids.group_id LIMIT :groups_max;

-- name: next_leftover
-- The next leftover to sweep.
SELECT partition_id, below_offset FROM leftovers LIMIT 1;

-- name: leftovers
-- All leftovers, in the order of sweeping.
SELECT partition_id, below_offset FROM leftovers LIMIT ?;

-- name: leftover_batches
-- Batches to sweep, as one JSON array.
SELECT json_group_array(json_array(base_offset, chunk_id, position, length))
FROM (
    SELECT base_offset, chunk_id, position, length FROM batches
    WHERE partition_id = :partition_id AND base_offset < :below AND last_offset < :below
    ORDER BY base_offset LIMIT :batches_max
);

-- name: sweep_batches
-- Deletes batches up to a given one.
DELETE FROM batches WHERE partition_id = ? AND base_offset <= ?;

-- name: dropped_batches
-- Dropped batches to sweep, as one JSON array.
SELECT json_group_array(json_array(chunk_id, position, length))
FROM (SELECT chunk_id, position, length FROM dropped ORDER BY chunk_id, position LIMIT ?);

-- name: sweep_dropped
-- Deletes dropped batches up to a given one.
DELETE FROM dropped WHERE (chunk_id, position) <= (?, ?);

-- name: has_dropped
-- Whether there are dropped batches to sweep.
SELECT EXISTS (SELECT * FROM dropped);

-- name: sweep_aborted
-- Deletes aborted transactions below an offset.
DELETE FROM aborted WHERE partition_id = ? AND marker_offset < ?;

-- name: sweep_producers
-- Deletes the producer states of a deleted partition.
DELETE FROM producers WHERE partition_id = ?;

-- name: forget_leftover
-- Removes a leftover that is completely swept.
DELETE FROM leftovers WHERE partition_id = ?;
