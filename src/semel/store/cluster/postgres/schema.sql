-- The tables of the ledger in PostgreSQL, in a schema of their own. They hold what the embedded ledger holds
-- (semel/store/embedded/schema.sql). Partitions are named by topic id and index everywhere, so a writer needs no look-up.
--
-- Text of clients may contain U+0000, which PostgreSQL does not store: see semel.store.cluster.postgres.database. It is ordered by
-- code point, hence COLLATE "C". Rows that change all the time leave room in their pages (fillfactor), so that a new
-- version of a row stays in the page of the old one and no index changes.
--
-- row_version is the id of the commit that wrote a row last: the slot of its broker, shifted by 44 bits, and the
-- sequence of the commit. It is never used twice. An entity without a row has version 0.
--
-- generation: while any session holds a snapshot, PostgreSQL keeps every older version of a row, and a search by key looks
-- at all of them. So the index of rows that change all the time ends in a number that grows with one change in 16, and the
-- newest version is found from its end. Such an index makes a key unique only within one generation. That catches two
-- commits that add the same row at once. A commit that adds a row has locked its shard besides (ADR 0052).

-- What the ledger records of itself: schema_version, cluster_id, the secret that only its brokers know, and the folder of
-- its objects, which has been marked if there is folder_marked (semel.store.cluster.claiming).
CREATE TABLE meta (
    name  text NOT NULL PRIMARY KEY,
    value text NOT NULL
);

-- One row: what belongs to no topic and no group. last_term counts the terms that have begun.
CREATE TABLE cluster (
    only_one            boolean NOT NULL PRIMARY KEY CHECK (only_one),
    transaction_version integer NOT NULL CHECK (transaction_version >= 0),
    features_epoch      bigint NOT NULL CHECK (features_epoch >= 0),
    last_term           bigint NOT NULL CHECK (last_term >= 0)
) WITH (fillfactor = 50);

-- The current term, at most one row. The table is not logged: it is empty after a crash of the server, which may have
-- lost commits that were not flushed, and full after a clean restart.
CREATE UNLOGGED TABLE term (
    term bigint NOT NULL PRIMARY KEY
);

-- A row for each broker. A new epoch means that another process took the broker's place (instance), or another broker its
-- shards. Commits look at a copy of it (commits in fencing.sql).
--
-- endpoints is a JSON object: the host and port that clients of each listener get; internal is a JSON array, the
-- address for other brokers. A broker is a member from when it joins until it leaves or is replaced.
--
-- lease is the length of its lease, from the last renewal on; 0 if the lease was ended. renewals counts the renewals, so
-- that other brokers notice when there are no more. lease_until is for operators, and for the next process with this id.
-- now_ms is the time by which the broker counted deadlines at the last renewal, 0 if it had none yet.
CREATE TABLE brokers (
    broker_id        integer NOT NULL PRIMARY KEY CHECK (broker_id >= 0),
    slot             integer NOT NULL UNIQUE GENERATED ALWAYS AS IDENTITY (MINVALUE 0 START WITH 0 MAXVALUE 524287),
    instance         bytea NOT NULL,
    epoch            bigint NOT NULL CHECK (epoch >= 1),
    lease            interval NOT NULL DEFAULT '0',
    renewals         bigint NOT NULL DEFAULT 0 CHECK (renewals >= 0),
    lease_until      timestamptz NOT NULL,
    now_ms           bigint NOT NULL DEFAULT 0 CHECK (now_ms >= 0),
    is_member        boolean NOT NULL DEFAULT false,
    is_leaving       boolean NOT NULL DEFAULT false,
    endpoints        text NOT NULL DEFAULT '{}',
    internal         text NOT NULL DEFAULT '["", 0]',
    rack             text
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The owners of shards (semel.core.entities). epoch counts the changes of the owner.
CREATE TABLE shards (
    shard smallint NOT NULL PRIMARY KEY CHECK (shard BETWEEN 0 AND 255),
    owner integer REFERENCES brokers,
    epoch bigint NOT NULL CHECK (epoch >= 0)
) WITH (fillfactor = 50);

-- Notices for brokers that could not be reached. They read them here with their next renewal.
CREATE TABLE notices (
    notice_id bigint NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    to_broker integer NOT NULL,
    to_epoch  bigint NOT NULL,
    body      bytea NOT NULL
);

CREATE INDEX notices_by_broker ON notices (to_broker);

-- What administrators have decided for the whole cluster: kind is acl, user, quota, config or secret.
-- name identifies it, and body is its value; both are JSON. The last commit wins, so there are no versions.
CREATE TABLE policies (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Topics that exist. configs is a JSON object of the values that were set, without defaults.
CREATE TABLE topics (
    name        text COLLATE "C" NOT NULL PRIMARY KEY,
    topic_id    bytea NOT NULL UNIQUE CHECK (octet_length(topic_id) = 16),
    partitions  integer NOT NULL CHECK (partitions >= 1),
    configs     text NOT NULL,
    row_version bigint NOT NULL CHECK (row_version >= 1)
);

-- Partitions that exist. open_transactions is packed: pairs of first offset and producer, ordered by offset. Below
-- cleaned_offset compaction has seen every record; compactions counts how often it replaced batches.
CREATE TABLE partitions (
    topic_id            bytea NOT NULL,
    partition_index     integer NOT NULL CHECK (partition_index >= 0),
    log_start_offset    bigint NOT NULL CHECK (log_start_offset >= 0),
    high_watermark      bigint NOT NULL CHECK (high_watermark >= log_start_offset),
    peak_timestamp      bigint NOT NULL,
    size_bytes          bigint NOT NULL CHECK (size_bytes >= 0),
    open_transactions   bytea NOT NULL,
    last_aborted_offset bigint NOT NULL CHECK (last_aborted_offset >= -1),
    cleaned_offset      bigint NOT NULL CHECK (cleaned_offset >= 0),
    compactions         bigint NOT NULL CHECK (compactions >= 0),
    row_version         bigint NOT NULL CHECK (row_version >= 1),
    generation          bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX partitions_newest ON partitions (topic_id, partition_index, generation);

-- Batches ordered by offset, and their locations. peak_timestamp is the largest max_timestamp up to and including
-- this batch, so it never falls and allows a binary search by time. A batch that compaction emptied has no row, so
-- offsets may have gaps.
--
-- A row may stand for a run of batches that follow one another in offsets and in bytes (semel.store.cluster.bytes.merging).
-- The arrays then have an element for each: its last offset, counted from base_offset, its length and largest timestamp.
CREATE TABLE batches (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    base_offset     bigint NOT NULL CHECK (base_offset >= 0),
    last_offset     bigint NOT NULL CHECK (last_offset >= base_offset),
    max_timestamp   bigint NOT NULL,
    peak_timestamp  bigint NOT NULL CHECK (peak_timestamp >= max_timestamp),
    chunk_id        bigint NOT NULL CHECK (chunk_id >= 1),
    position        bigint NOT NULL CHECK (position >= 0),
    length          bigint NOT NULL CHECK (length >= 1),
    run_ends        integer[],
    run_lengths     integer[],
    run_timestamps  bigint[],
    PRIMARY KEY (topic_id, partition_index, base_offset)
);

-- Batches of open transactions in partitions with journal visibility, in the order of staging. They have no offsets.
-- A commit assigns offsets and moves the rows to batches, an abort moves them to dropped. The bytes stay in place.
CREATE TABLE staged (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    producer_id     bigint NOT NULL CHECK (producer_id >= 0),
    offsets         bigint NOT NULL CHECK (offsets >= 1),
    max_timestamp   bigint NOT NULL,
    chunk_id        bigint NOT NULL CHECK (chunk_id >= 1),
    position        bigint NOT NULL CHECK (position >= 0),
    length          bigint NOT NULL CHECK (length >= 1),
    stage_number    bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (topic_id, partition_index, producer_id, stage_number)
);

-- Work for the sweep: bytes of staged batches that will never be read, and of batches that compaction replaced.
CREATE TABLE dropped (
    chunk_id bigint NOT NULL CHECK (chunk_id >= 1),
    position bigint NOT NULL CHECK (position >= 0),
    length   bigint NOT NULL CHECK (length >= 1),
    PRIMARY KEY (chunk_id, position)
);

-- Aborted transactions of partitions with marker visibility, for readers that must skip them. last_stable_offset is
-- that of the partition after the abort: it never falls from one marker to the next.
CREATE TABLE aborted (
    topic_id           bytea NOT NULL,
    partition_index    integer NOT NULL,
    marker_offset      bigint NOT NULL CHECK (marker_offset >= 0),
    first_offset       bigint NOT NULL CHECK (first_offset BETWEEN 0 AND marker_offset),
    producer_id        bigint NOT NULL CHECK (producer_id >= 0),
    last_stable_offset bigint NOT NULL CHECK (last_stable_offset >= 0),
    PRIMARY KEY (topic_id, partition_index, marker_offset)
);

-- What a partition remembers of a producer. recent_batches is packed, at most five. staged is packed too: the total
-- that the open transaction has staged; empty if nothing.
CREATE TABLE producers (
    topic_id                 bytea NOT NULL,
    partition_index          integer NOT NULL,
    producer_id              bigint NOT NULL CHECK (producer_id >= 0),
    epoch                    integer NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    recent_batches           bytea NOT NULL,
    last_timestamp           bigint NOT NULL,
    seen_ms                  bigint NOT NULL,
    coordinator_epoch        integer NOT NULL,
    transaction_first_offset bigint NOT NULL CHECK (transaction_first_offset >= -1),
    staged                   bytea NOT NULL,
    row_version              bigint NOT NULL CHECK (row_version >= 1),
    generation               bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX producers_newest ON producers (topic_id, partition_index, producer_id, generation);

-- Committed offsets of groups, by topic name as in the protocol.
CREATE TABLE offsets (
    group_id         text COLLATE "C" NOT NULL,
    topic            text COLLATE "C" NOT NULL,
    partition_index  integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch     integer NOT NULL,
    metadata         text NOT NULL,
    committed_ms     bigint NOT NULL,
    shard            smallint NOT NULL,
    generation       bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX offsets_newest ON offsets (group_id, topic, partition_index, generation);

-- For deleting a topic with every group's offsets on it.
CREATE INDEX offsets_by_topic ON offsets (topic);

-- Versions of groups' pending offsets. A group may have a row here and no pending offsets.
CREATE TABLE pending_versions (
    group_id    text COLLATE "C" NOT NULL,
    row_version bigint NOT NULL CHECK (row_version >= 1),
    generation  bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX pending_versions_newest ON pending_versions (group_id, generation);

-- Offsets that become the group's position when a transaction commits. position is their order within the group; it
-- may have gaps. is_superseded: a later commit has overtaken this partition. Those of a group are written together, and
-- have its version (pending_versions).
CREATE TABLE pending_offsets (
    group_id         text COLLATE "C" NOT NULL,
    position         integer NOT NULL CHECK (position >= 0),
    producer_id      bigint NOT NULL,
    topic            text COLLATE "C" NOT NULL,
    partition_index  integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch     integer NOT NULL,
    metadata         text NOT NULL,
    committed_ms     bigint NOT NULL,
    is_superseded    boolean NOT NULL,
    row_version      bigint NOT NULL CHECK (row_version >= 1),
    PRIMARY KEY (group_id, row_version, position)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- For deleting a topic with its pending offsets.
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic);

-- Transactional ids. partitions is a JSON array of pairs of topic id (hexadecimal) and index, groups one of group ids,
-- shares one of share-partitions (topic id, index, group id): the contents of the open transaction. Times are in
-- milliseconds, -1 is none.
CREATE TABLE transactions (
    transactional_id     text COLLATE "C" NOT NULL,
    producer_id          bigint NOT NULL CHECK (producer_id >= 0),
    epoch                integer NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    timeout_ms           integer NOT NULL,
    state                text NOT NULL CHECK (state IN ('Empty', 'Ongoing', 'CompleteCommit', 'CompleteAbort')),
    partitions           text NOT NULL,
    groups               text NOT NULL,
    started_ms           bigint NOT NULL,
    updated_ms           bigint NOT NULL,
    deadline_ms          bigint NOT NULL,
    previous_producer_id bigint NOT NULL CHECK (previous_producer_id >= -1),
    last_epoch           integer NOT NULL CHECK (last_epoch BETWEEN -1 AND 32767),
    version              integer NOT NULL,
    term                 bigint NOT NULL,
    is_two_phase         boolean NOT NULL,
    prepared_epoch       integer NOT NULL CHECK (prepared_epoch BETWEEN -1 AND 32767),
    row_version          bigint NOT NULL CHECK (row_version >= 1),
    shares               text NOT NULL,
    generation           bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX transactions_newest ON transactions (transactional_id, generation);

-- Groups. body is the whole group, packed by the core; the other columns are for listing.
CREATE TABLE groups (
    group_id      text COLLATE "C" NOT NULL,
    kind          text NOT NULL,
    protocol_type text NOT NULL,
    state         text NOT NULL,
    body          bytea NOT NULL,
    row_version   bigint NOT NULL CHECK (row_version >= 1),
    generation    bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX groups_newest ON groups (group_id, generation);

-- Work for the sweep: batches of this partition that end below this offset, and the transactions that were aborted
-- there. The largest possible offset means that the partition was deleted, with all its batches and producers.
CREATE TABLE leftovers (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    below_offset    bigint NOT NULL CHECK (below_offset >= 0),
    PRIMARY KEY (topic_id, partition_index)
);

INSERT INTO cluster (only_one, transaction_version, features_epoch, last_term) VALUES (true, 2, 1, 0);
INSERT INTO shards SELECT shard, NULL, 0 FROM generate_series(0, 255) AS shard;
