-- The tables and functions of version 7, as they were.

CREATE TABLE meta (
    name  text NOT NULL PRIMARY KEY,
    value text NOT NULL
);
CREATE TABLE cluster (
    only_one            boolean NOT NULL PRIMARY KEY CHECK (only_one),
    transaction_version integer NOT NULL CHECK (transaction_version >= 0),
    features_epoch      bigint NOT NULL CHECK (features_epoch >= 0),
    last_term           bigint NOT NULL CHECK (last_term >= 0)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE term (
    term bigint NOT NULL PRIMARY KEY
);
CREATE TABLE brokers (
    broker_id        integer NOT NULL PRIMARY KEY CHECK (broker_id >= 0),
    slot             integer NOT NULL UNIQUE GENERATED ALWAYS AS IDENTITY (MINVALUE 0 START WITH 0 MAXVALUE 524287),
    instance         bytea NOT NULL,
    epoch            bigint NOT NULL CHECK (epoch >= 1),
    session          bigint NOT NULL DEFAULT 0 CHECK (session >= 0),
    sequence         bigint NOT NULL DEFAULT 0 CHECK (sequence >= 0),
    next_producer_id bigint NOT NULL DEFAULT 0 CHECK (next_producer_id >= 0),
    lease_until      timestamptz NOT NULL,
    is_member        boolean NOT NULL DEFAULT false,
    is_leaving       boolean NOT NULL DEFAULT false,
    endpoints        text NOT NULL DEFAULT '{}',
    internal         text NOT NULL DEFAULT '["", 0]',
    rack             text
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE shards (
    shard smallint NOT NULL PRIMARY KEY CHECK (shard BETWEEN 0 AND 255),
    owner integer REFERENCES brokers,
    epoch bigint NOT NULL CHECK (epoch >= 0)
) WITH (fillfactor = 50);
CREATE TABLE notices (
    notice_id bigint NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    to_broker integer NOT NULL,
    to_epoch  bigint NOT NULL,
    body      bytea NOT NULL
);
CREATE INDEX notices_by_broker ON notices (to_broker);
CREATE TABLE policies (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE topics (
    name        text COLLATE "C" NOT NULL PRIMARY KEY,
    topic_id    bytea NOT NULL UNIQUE CHECK (octet_length(topic_id) = 16),
    partitions  integer NOT NULL CHECK (partitions >= 1),
    configs     text NOT NULL,
    row_version bigint NOT NULL CHECK (row_version >= 1)
);
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
    PRIMARY KEY (topic_id, partition_index)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
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
CREATE TABLE dropped (
    chunk_id bigint NOT NULL CHECK (chunk_id >= 1),
    position bigint NOT NULL CHECK (position >= 0),
    length   bigint NOT NULL CHECK (length >= 1),
    PRIMARY KEY (chunk_id, position)
);
CREATE TABLE aborted (
    topic_id           bytea NOT NULL,
    partition_index    integer NOT NULL,
    marker_offset      bigint NOT NULL CHECK (marker_offset >= 0),
    first_offset       bigint NOT NULL CHECK (first_offset BETWEEN 0 AND marker_offset),
    producer_id        bigint NOT NULL CHECK (producer_id >= 0),
    last_stable_offset bigint NOT NULL CHECK (last_stable_offset >= 0),
    PRIMARY KEY (topic_id, partition_index, marker_offset)
);
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
    PRIMARY KEY (topic_id, partition_index, producer_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE offsets (
    group_id         text COLLATE "C" NOT NULL,
    topic            text COLLATE "C" NOT NULL,
    partition_index  integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch     integer NOT NULL,
    metadata         text NOT NULL,
    committed_ms     bigint NOT NULL,
    shard            smallint NOT NULL,
    PRIMARY KEY (group_id, topic, partition_index)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX offsets_by_shard ON offsets (shard, group_id);
CREATE INDEX offsets_by_topic ON offsets (topic);
CREATE TABLE pending_versions (
    group_id    text COLLATE "C" NOT NULL PRIMARY KEY,
    row_version bigint NOT NULL CHECK (row_version >= 1)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
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
    PRIMARY KEY (group_id, position)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic);
CREATE TABLE transactions (
    transactional_id     text COLLATE "C" NOT NULL PRIMARY KEY,
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
    shard                smallint NOT NULL,
    row_version          bigint NOT NULL CHECK (row_version >= 1),
    shares               text NOT NULL DEFAULT '[]'
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX transactions_by_shard ON transactions (shard, transactional_id);
CREATE TABLE groups (
    group_id      text COLLATE "C" NOT NULL PRIMARY KEY,
    kind          text NOT NULL,
    protocol_type text NOT NULL,
    state         text NOT NULL,
    member_count  integer NOT NULL CHECK (member_count >= 0),
    body          bytea NOT NULL,
    shard         smallint NOT NULL,
    row_version   bigint NOT NULL CHECK (row_version >= 1)
) WITH (fillfactor = 70);
CREATE INDEX groups_by_shard ON groups (shard, group_id);
CREATE TABLE leftovers (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    below_offset    bigint NOT NULL CHECK (below_offset >= 0),
    PRIMARY KEY (topic_id, partition_index)
);
INSERT INTO cluster (only_one, transaction_version, features_epoch, last_term) VALUES (true, 2, 1, 0);
INSERT INTO shards SELECT shard, NULL, 0 FROM generate_series(0, 255) AS shard;

CREATE SEQUENCE chunk_ids INCREMENT BY 1000;
CREATE TABLE chunks (
    chunk_id        bigint NOT NULL PRIMARY KEY CHECK (chunk_id >= 1),
    live_bytes      bigint NOT NULL CHECK (live_bytes >= 0),
    object_id       bigint CHECK (object_id >= 1),
    object_position bigint NOT NULL CHECK (object_position >= 0)
) WITH (fillfactor = 70);
CREATE INDEX chunks_by_object ON chunks (object_id) WHERE object_id IS NOT NULL;
CREATE TABLE objects (
    object_id  bigint NOT NULL PRIMARY KEY CHECK (object_id >= 1),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    state      text NOT NULL CHECK (state IN ('uploading', 'stored', 'unused', 'abandoned', 'deleting')),
    since      timestamptz NOT NULL
);
CREATE INDEX objects_to_delete ON objects (since) WHERE state <> 'stored';
CREATE FUNCTION store_objects(new_objects objects[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    stored integer;
BEGIN
    UPDATE objects SET size_bytes = each.size_bytes, state = 'stored', since = clock_timestamp()
    FROM unnest(new_objects) AS each
    WHERE objects.object_id = each.object_id AND objects.state = 'uploading';
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored <> cardinality(new_objects) THEN
        RAISE EXCEPTION 'an object was uploaded too long ago' USING ERRCODE = 'SM010';
    END IF;
END
$$;
CREATE TABLE inline_0 (
    chunk_id bigint NOT NULL PRIMARY KEY,
    bytes    bytea NOT NULL
) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
ALTER TABLE inline_0 ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TABLE inline_1 (LIKE inline_0 INCLUDING ALL)
    WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
CREATE TABLE inline_2 (LIKE inline_0 INCLUDING ALL)
    WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
CREATE TABLE inline_3 (LIKE inline_0 INCLUDING ALL)
    WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
CREATE VIEW inline_bytes AS
    SELECT * FROM inline_0 UNION ALL SELECT * FROM inline_1
    UNION ALL SELECT * FROM inline_2 UNION ALL SELECT * FROM inline_3;
CREATE TABLE inline_generation (
    only_one   boolean NOT NULL PRIMARY KEY CHECK (only_one),
    generation integer NOT NULL CHECK (generation BETWEEN 0 AND 3),
    since      timestamptz NOT NULL
);
INSERT INTO inline_generation VALUES (true, 0, clock_timestamp());
CREATE FUNCTION keep_inline(new_bytes inline_bytes[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    current integer := (SELECT generation FROM inline_generation);
BEGIN
    IF current = 0 THEN
        INSERT INTO inline_0 SELECT * FROM unnest(new_bytes);
    ELSIF current = 1 THEN
        INSERT INTO inline_1 SELECT * FROM unnest(new_bytes);
    ELSIF current = 2 THEN
        INSERT INTO inline_2 SELECT * FROM unnest(new_bytes);
    ELSE
        INSERT INTO inline_3 SELECT * FROM unnest(new_bytes);
    END IF;
END
$$;
CREATE TABLE merged (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    next_offset     bigint NOT NULL CHECK (next_offset >= 0),
    PRIMARY KEY (topic_id, partition_index)
) WITH (fillfactor = 70);
CREATE VIEW batch_sizes AS
    SELECT topic_id, partition_index, base_offset AS row_offset, base_offset + each.ends AS last_offset,
        each.length, each.number
    FROM batches CROSS JOIN LATERAL unnest(
        coalesce(run_ends, ARRAY[(last_offset - base_offset)::integer]),
        coalesce(run_lengths, ARRAY[length::integer])
    ) WITH ORDINALITY AS each (ends, length, number);
CREATE FUNCTION batches_in(stored batches) RETURNS SETOF batches LANGUAGE sql IMMUTABLE AS $$
    SELECT stored.* WHERE stored.run_ends IS NULL
    UNION ALL
    SELECT
        stored.topic_id, stored.partition_index,
        stored.base_offset + coalesce(lag(each.ends) OVER earlier + 1, 0), stored.base_offset + each.ends,
        each.at, stored.peak_timestamp, stored.chunk_id,
        (stored.position + sum(each.length) OVER earlier - each.length)::bigint, each.length::bigint,
        NULL::integer[], NULL::integer[], NULL::bigint[]
    FROM unnest(stored.run_ends, stored.run_lengths, stored.run_timestamps)
        WITH ORDINALITY AS each (ends, length, at, number)
    WINDOW earlier AS (ORDER BY each.number);
$$;
CREATE FUNCTION split_runs(my_topic bytea, my_index integer, offsets bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first bigint := (SELECT min(each) FROM unnest(offsets) AS each);
    last bigint := (SELECT max(each) FROM unnest(offsets) AS each);
    run batches;
BEGIN
    FOR run IN
        DELETE FROM batches
        WHERE topic_id = my_topic AND partition_index = my_index AND run_ends IS NOT NULL
        AND base_offset BETWEEN batch_holding(my_topic, my_index, first) AND last
        AND EXISTS (SELECT FROM unnest(offsets) AS each WHERE each BETWEEN base_offset AND last_offset)
        RETURNING *
    LOOP
        INSERT INTO batches SELECT * FROM batches_in(run);
    END LOOP;
END
$$;

CREATE TABLE numbering (
    last_object bigint NOT NULL
);
INSERT INTO numbering SELECT CASE WHEN is_called THEN last_value + 999 ELSE 0 END FROM chunk_ids;
CREATE OR REPLACE FUNCTION reserve_objects(how_many integer) RETURNS bigint LANGUAGE sql AS $$
    WITH block AS MATERIALIZED (SELECT nextval('chunk_ids') AS first),
    noted AS (
        UPDATE numbering SET last_object = greatest(last_object, first + how_many - 1) FROM block
    ),
    reserved AS (
        INSERT INTO objects
        SELECT number, 0, 'uploading', clock_timestamp()
        FROM block, generate_series(first, first + how_many - 1) AS number
        RETURNING object_id
    )
    SELECT min(object_id) FROM reserved;
$$;
CREATE OR REPLACE FUNCTION skip_numbers() RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH skipped AS MATERIALIZED (
        SELECT setval('chunk_ids', last_value + 1000000000000) AS last FROM chunk_ids
    )
    UPDATE numbering SET last_object = last FROM skipped RETURNING last_object;
$$;

CREATE TYPE claim AS (
    broker_id integer, epoch bigint, session bigint, sequence bigint, term bigint, is_synced boolean,
    next_producer_id bigint
);
CREATE TYPE named_version AS (name text, row_version bigint);
CREATE TYPE partition_version AS (topic_id bytea, partition_index integer, row_version bigint);
CREATE TYPE producer_version AS (
    topic_id bytea, partition_index integer, producer_id bigint, row_version bigint
);
CREATE TYPE share_version AS (topic_id bytea, partition_index integer, group_id text, row_version bigint);
CREATE TYPE expectations AS (
    topics named_version[], partitions partition_version[], producers producer_version[],
    transactions named_version[], groups named_version[], pending named_version[],
    present integer[], writes boolean[], absent integer[], shares share_version[]
);
CREATE FUNCTION check_versions(expected expectations) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_entities(expected) THEN
        RAISE EXCEPTION 'entities have changed since they were loaded'
            USING ERRCODE = 'SM003', DETAIL = coalesce(moved_entities(expected), '[]');
    END IF;
END
$$;
CREATE FUNCTION count_commit(mine claim) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM term WHERE term.term = mine.term) THEN
        RAISE EXCEPTION 'the term % is over', mine.term USING ERRCODE = 'SM002';
    END IF;
    UPDATE brokers SET
        sequence = mine.sequence, next_producer_id = coalesce(mine.next_producer_id, brokers.next_producer_id)
    WHERE broker_id = mine.broker_id AND epoch = mine.epoch AND session = mine.session;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'broker % has no epoch %: another process took its place', mine.broker_id, mine.epoch
            USING ERRCODE = 'SM001';
    END IF;
    IF NOT mine.is_synced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;
CREATE FUNCTION current_term() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_term bigint;
BEGIN
    SELECT term INTO found_term FROM term;
    IF NOT FOUND THEN
        PERFORM FROM cluster FOR UPDATE;
        SELECT term INTO found_term FROM term;
        IF NOT FOUND THEN
            UPDATE cluster SET last_term = last_term + 1 RETURNING last_term INTO found_term;
            INSERT INTO term VALUES (found_term);
        END IF;
    END IF;
    RETURN found_term;
END
$$;

CREATE TABLE shares (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL CHECK (partition_index >= 0),
    group_id        text COLLATE "C" NOT NULL,
    start_offset    bigint NOT NULL CHECK (start_offset >= -1),
    epoch           bigint NOT NULL CHECK (epoch >= 0),
    runs            text NOT NULL,
    row_version     bigint NOT NULL CHECK (row_version >= 1),
    PRIMARY KEY (topic_id, partition_index, group_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE FUNCTION write_shares(new_shares shares[], gone_shares shares[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO shares SELECT * FROM unnest(new_shares)
    ON CONFLICT (topic_id, partition_index, group_id) DO UPDATE SET
        start_offset = excluded.start_offset, epoch = excluded.epoch, runs = excluded.runs,
        row_version = excluded.row_version;
    DELETE FROM shares USING unnest(gone_shares) AS gone
    WHERE shares.topic_id = gone.topic_id AND shares.partition_index = gone.partition_index
    AND shares.group_id = gone.group_id;
$$;
CREATE FUNCTION commit_shares(
    mine claim, expected expectations, new_shares shares[], gone_shares shares[]
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_entities(expected) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN coalesce(moved_entities(expected), '[]');
    END IF;
    PERFORM write_shares(new_shares, gone_shares);
    PERFORM count_commit(mine);
    RETURN NULL;
END
$$;
CREATE FUNCTION delete_shares_of_topic(my_topic bytea) RETURNS void LANGUAGE sql AS $$
    DELETE FROM shares WHERE topic_id = my_topic;
$$;

CREATE OR REPLACE FUNCTION lock_entities(wanted expectations) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    holds boolean := true;
    is_same boolean;
BEGIN
    IF cardinality(wanted.absent) > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtext(current_schema()), shard) FROM unnest(wanted.absent) AS shard;
    END IF;
    IF cardinality(wanted.topics) > 0 THEN
        IF wanted.writes[1] THEN
            SELECT count(*) = wanted.present[1] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT topics.row_version = each.row_version AS is_expected
                FROM topics JOIN unnest(wanted.topics) WITH ORDINALITY AS each ON topics.name = each.name
                ORDER BY ordinality FOR UPDATE OF topics
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[1] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT topics.row_version = each.row_version AS is_expected
                FROM topics JOIN unnest(wanted.topics) WITH ORDINALITY AS each ON topics.name = each.name
                ORDER BY ordinality FOR SHARE OF topics
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.partitions) > 0 THEN
        IF wanted.writes[2] THEN
            SELECT count(*) = wanted.present[2] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT partitions.row_version = each.row_version AS is_expected
                FROM partitions JOIN unnest(wanted.partitions) WITH ORDINALITY AS each
                USING (topic_id, partition_index)
                ORDER BY ordinality FOR UPDATE OF partitions
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[2] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT partitions.row_version = each.row_version AS is_expected
                FROM partitions JOIN unnest(wanted.partitions) WITH ORDINALITY AS each
                USING (topic_id, partition_index)
                ORDER BY ordinality FOR SHARE OF partitions
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.producers) > 0 THEN
        IF wanted.writes[3] THEN
            SELECT count(*) = wanted.present[3] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT producers.row_version = each.row_version AS is_expected
                FROM producers JOIN unnest(wanted.producers) WITH ORDINALITY AS each
                USING (topic_id, partition_index, producer_id)
                JOIN partitions USING (topic_id, partition_index)
                ORDER BY ordinality FOR UPDATE OF producers
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[3] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT producers.row_version = each.row_version AS is_expected
                FROM producers JOIN unnest(wanted.producers) WITH ORDINALITY AS each
                USING (topic_id, partition_index, producer_id)
                JOIN partitions USING (topic_id, partition_index)
                ORDER BY ordinality FOR SHARE OF producers
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.transactions) > 0 THEN
        IF wanted.writes[4] THEN
            SELECT count(*) = wanted.present[4] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT transactions.row_version = each.row_version AS is_expected
                FROM transactions JOIN unnest(wanted.transactions) WITH ORDINALITY AS each
                ON transactional_id = each.name
                ORDER BY ordinality FOR UPDATE OF transactions
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[4] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT transactions.row_version = each.row_version AS is_expected
                FROM transactions JOIN unnest(wanted.transactions) WITH ORDINALITY AS each
                ON transactional_id = each.name
                ORDER BY ordinality FOR SHARE OF transactions
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.groups) > 0 THEN
        IF wanted.writes[5] THEN
            SELECT count(*) = wanted.present[5] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT groups.row_version = each.row_version AS is_expected
                FROM groups JOIN unnest(wanted.groups) WITH ORDINALITY AS each ON group_id = each.name
                ORDER BY ordinality FOR UPDATE OF groups
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[5] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT groups.row_version = each.row_version AS is_expected
                FROM groups JOIN unnest(wanted.groups) WITH ORDINALITY AS each ON group_id = each.name
                ORDER BY ordinality FOR SHARE OF groups
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.pending) > 0 THEN
        IF wanted.writes[6] THEN
            SELECT count(*) = wanted.present[6] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT pending_versions.row_version = each.row_version AS is_expected
                FROM pending_versions JOIN unnest(wanted.pending) WITH ORDINALITY AS each ON group_id = each.name
                ORDER BY ordinality FOR UPDATE OF pending_versions
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[6] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT pending_versions.row_version = each.row_version AS is_expected
                FROM pending_versions JOIN unnest(wanted.pending) WITH ORDINALITY AS each ON group_id = each.name
                ORDER BY ordinality FOR SHARE OF pending_versions
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.shares) > 0 THEN
        IF wanted.writes[7] THEN
            SELECT count(*) = wanted.present[7] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT shares.row_version = each.row_version AS is_expected
                FROM shares JOIN unnest(wanted.shares) WITH ORDINALITY AS each
                USING (topic_id, partition_index, group_id)
                ORDER BY ordinality FOR UPDATE OF shares
            ) AS locked;
        ELSE
            SELECT count(*) = wanted.present[7] AND coalesce(bool_and(is_expected), true) INTO is_same FROM (
                SELECT shares.row_version = each.row_version AS is_expected
                FROM shares JOIN unnest(wanted.shares) WITH ORDINALITY AS each
                USING (topic_id, partition_index, group_id)
                ORDER BY ordinality FOR SHARE OF shares
            ) AS locked;
        END IF;
        holds := holds AND is_same;
    END IF;
    RETURN holds;
END
$$;
CREATE OR REPLACE FUNCTION moved_entities(expected expectations) RETURNS text LANGUAGE sql AS $$
    SELECT json_agg(json_build_array(kind, ordinality - 1)) FROM (
        SELECT 0 AS kind, ordinality FROM unnest(expected.topics) WITH ORDINALITY AS each
        LEFT JOIN topics USING (name) WHERE coalesce(topics.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 1, ordinality FROM unnest(expected.partitions) WITH ORDINALITY AS each
        LEFT JOIN partitions USING (topic_id, partition_index)
        WHERE coalesce(partitions.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 2, ordinality FROM unnest(expected.producers) WITH ORDINALITY AS each
        LEFT JOIN (producers JOIN partitions USING (topic_id, partition_index))
        USING (topic_id, partition_index, producer_id)
        WHERE coalesce(producers.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 3, ordinality FROM unnest(expected.transactions) WITH ORDINALITY AS each
        LEFT JOIN transactions ON transactional_id = each.name
        WHERE coalesce(transactions.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 4, ordinality FROM unnest(expected.groups) WITH ORDINALITY AS each
        LEFT JOIN groups ON group_id = each.name WHERE coalesce(groups.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 5, ordinality FROM unnest(expected.pending) WITH ORDINALITY AS each
        LEFT JOIN pending_versions ON group_id = each.name
        WHERE coalesce(pending_versions.row_version, 0) <> each.row_version
        UNION ALL
        SELECT 6, ordinality FROM unnest(expected.shares) WITH ORDINALITY AS each
        LEFT JOIN shares USING (topic_id, partition_index, group_id)
        WHERE coalesce(shares.row_version, 0) <> each.row_version
    ) AS each_moved;
$$;

CREATE OR REPLACE FUNCTION write_rows(
    new_partitions partitions[], new_batches batches[], new_aborted aborted[],
    new_producers producers[], gone_producers producers[],
    new_offsets offsets[], gone_offsets offsets[],
    new_transactions transactions[], gone_transactions text[],
    pending_groups pending_versions[], new_pending pending_offsets[],
    new_groups groups[], new_leftovers leftovers[], new_dropped dropped[], new_objects objects[],
    new_chunks chunks[], new_bytes inline_bytes[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(new_partitions) > 0 THEN
        INSERT INTO partitions SELECT * FROM unnest(new_partitions)
        ON CONFLICT (topic_id, partition_index) DO UPDATE SET
            log_start_offset = excluded.log_start_offset, high_watermark = excluded.high_watermark,
            peak_timestamp = excluded.peak_timestamp, size_bytes = excluded.size_bytes,
            open_transactions = excluded.open_transactions,
            last_aborted_offset = excluded.last_aborted_offset,
            cleaned_offset = excluded.cleaned_offset, compactions = excluded.compactions,
            row_version = excluded.row_version;
    END IF;
    IF cardinality(new_batches) > 0 THEN
        INSERT INTO batches SELECT * FROM unnest(new_batches);
    END IF;
    IF cardinality(new_aborted) > 0 THEN
        INSERT INTO aborted SELECT * FROM unnest(new_aborted);
    END IF;
    IF cardinality(new_producers) > 0 THEN
        INSERT INTO producers SELECT * FROM unnest(new_producers)
        ON CONFLICT (topic_id, partition_index, producer_id) DO UPDATE SET
            epoch = excluded.epoch, recent_batches = excluded.recent_batches,
            last_timestamp = excluded.last_timestamp, seen_ms = excluded.seen_ms,
            coordinator_epoch = excluded.coordinator_epoch,
            transaction_first_offset = excluded.transaction_first_offset, staged = excluded.staged,
            row_version = excluded.row_version;
    END IF;
    IF cardinality(gone_producers) > 0 THEN
        DELETE FROM producers USING unnest(gone_producers) AS gone
        WHERE producers.topic_id = gone.topic_id AND producers.partition_index = gone.partition_index
        AND producers.producer_id = gone.producer_id;
    END IF;
    IF cardinality(new_offsets) > 0 THEN
        INSERT INTO offsets SELECT * FROM unnest(new_offsets)
        ON CONFLICT (group_id, topic, partition_index) DO UPDATE SET
            committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata, committed_ms = excluded.committed_ms;
    END IF;
    IF cardinality(gone_offsets) > 0 THEN
        DELETE FROM offsets USING unnest(gone_offsets) AS gone
        WHERE offsets.group_id = gone.group_id AND offsets.topic = gone.topic
        AND offsets.partition_index = gone.partition_index;
    END IF;
    IF cardinality(new_transactions) > 0 THEN
        INSERT INTO transactions SELECT * FROM unnest(new_transactions)
        ON CONFLICT (transactional_id) DO UPDATE SET
            producer_id = excluded.producer_id, epoch = excluded.epoch, timeout_ms = excluded.timeout_ms,
            state = excluded.state, partitions = excluded.partitions, groups = excluded.groups,
            started_ms = excluded.started_ms, updated_ms = excluded.updated_ms,
            deadline_ms = excluded.deadline_ms, previous_producer_id = excluded.previous_producer_id,
            last_epoch = excluded.last_epoch, version = excluded.version, term = excluded.term,
            is_two_phase = excluded.is_two_phase, prepared_epoch = excluded.prepared_epoch,
            row_version = excluded.row_version, shares = excluded.shares;
    END IF;
    IF cardinality(gone_transactions) > 0 THEN
        DELETE FROM transactions WHERE transactional_id = ANY (gone_transactions);
    END IF;
    IF cardinality(pending_groups) > 0 THEN
        INSERT INTO pending_versions SELECT * FROM unnest(pending_groups)
        ON CONFLICT (group_id) DO UPDATE SET row_version = excluded.row_version;
        DELETE FROM pending_offsets USING unnest(pending_groups) AS each
        WHERE pending_offsets.group_id = each.group_id;
        INSERT INTO pending_offsets SELECT * FROM unnest(new_pending);
    END IF;
    IF cardinality(new_groups) > 0 THEN
        INSERT INTO groups SELECT * FROM unnest(new_groups)
        ON CONFLICT (group_id) DO UPDATE SET
            kind = excluded.kind, protocol_type = excluded.protocol_type, state = excluded.state,
            member_count = excluded.member_count, body = excluded.body, row_version = excluded.row_version;
    END IF;
    IF cardinality(new_leftovers) > 0 THEN
        INSERT INTO leftovers SELECT * FROM unnest(new_leftovers)
        ON CONFLICT (topic_id, partition_index) DO UPDATE SET
            below_offset = greatest(leftovers.below_offset, excluded.below_offset);
    END IF;
    IF cardinality(new_dropped) > 0 THEN
        INSERT INTO dropped SELECT * FROM unnest(new_dropped);
    END IF;
    IF cardinality(new_objects) > 0 THEN
        PERFORM store_objects(new_objects);
    END IF;
    IF cardinality(new_chunks) > 0 THEN
        INSERT INTO chunks SELECT * FROM unnest(new_chunks)
        ON CONFLICT (chunk_id) DO UPDATE SET live_bytes = chunks.live_bytes + excluded.live_bytes;
    END IF;
    IF cardinality(new_bytes) > 0 THEN
        PERFORM keep_inline(new_bytes);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION commit_rows(
    mine claim, expected expectations,
    new_partitions partitions[], new_batches batches[], new_aborted aborted[],
    new_producers producers[], gone_producers producers[],
    new_offsets offsets[], gone_offsets offsets[],
    new_transactions transactions[], gone_transactions text[],
    pending_groups pending_versions[], new_pending pending_offsets[],
    new_groups groups[], new_leftovers leftovers[], new_dropped dropped[], new_objects objects[],
    new_chunks chunks[], new_bytes inline_bytes[]
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_entities(expected) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN coalesce(moved_entities(expected), '[]');
    END IF;
    PERFORM write_rows(
        new_partitions, new_batches, new_aborted, new_producers, gone_producers, new_offsets, gone_offsets,
        new_transactions, gone_transactions, pending_groups, new_pending, new_groups, new_leftovers,
        new_dropped, new_objects, new_chunks, new_bytes
    );
    PERFORM count_commit(mine);
    RETURN NULL;
END
$$;

CREATE FUNCTION stage_batches(new_staged staged[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO staged (
        topic_id, partition_index, producer_id, offsets, max_timestamp, chunk_id, position, length
    )
    SELECT topic_id, partition_index, producer_id, offsets, max_timestamp, chunk_id, position, length
    FROM unnest(new_staged) WITH ORDINALITY AS each ORDER BY ordinality;
$$;
CREATE FUNCTION commit_staged(
    my_topic bytea, my_index integer, my_producer bigint, first_offset bigint, peak_before bigint,
    OUT last_offset bigint, OUT last_peak bigint
) LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM staged
        WHERE topic_id = my_topic AND partition_index = my_index AND producer_id = my_producer
        RETURNING *
    ),
    moved AS (
        INSERT INTO batches
        SELECT
            topic_id, partition_index, first_offset + sum(offsets) OVER earlier - offsets,
            first_offset + sum(offsets) OVER earlier - 1, max_timestamp,
            greatest(peak_before, max(max_timestamp) OVER earlier), chunk_id, position, length
        FROM taken
        WINDOW earlier AS (ORDER BY stage_number)
        RETURNING last_offset, peak_timestamp
    )
    SELECT max(moved.last_offset), max(peak_timestamp) FROM moved;
$$;
CREATE FUNCTION drop_staged(my_topic bytea, my_index integer, my_producer bigint)
RETURNS void LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM staged
        WHERE topic_id = my_topic AND partition_index = my_index AND producer_id = my_producer
        RETURNING chunk_id, position, length
    )
    INSERT INTO dropped SELECT * FROM taken;
$$;
CREATE FUNCTION put_topic(
    my_name text, my_topic bytea, my_partitions integer, my_configs text, my_version bigint
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO topics VALUES (my_name, my_topic, my_partitions, my_configs, my_version)
    ON CONFLICT (topic_id) DO UPDATE SET
        partitions = excluded.partitions, configs = excluded.configs, row_version = excluded.row_version;
    INSERT INTO partitions
    SELECT my_topic, index, 0, 0, -1, 0, ''::bytea, -1, 0, 0, my_version
    FROM generate_series(0, my_partitions - 1) AS index
    ON CONFLICT DO NOTHING;
$$;
CREATE FUNCTION delete_topic(my_name text, my_topic bytea, my_version bigint) RETURNS void LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM staged WHERE topic_id = my_topic RETURNING chunk_id, position, length
    )
    INSERT INTO dropped SELECT * FROM taken;
    INSERT INTO leftovers
    SELECT topic_id, partition_index, 9223372036854775807 FROM partitions WHERE topic_id = my_topic
    ON CONFLICT (topic_id, partition_index) DO UPDATE SET below_offset = excluded.below_offset;
    DELETE FROM partitions WHERE topic_id = my_topic;
    DELETE FROM topics WHERE topic_id = my_topic;
    INSERT INTO pending_versions
    SELECT group_id, my_version FROM (
        SELECT group_id FROM offsets WHERE topic = my_name
        UNION
        SELECT group_id FROM pending_offsets WHERE topic = my_name
        ORDER BY group_id
    ) AS each
    ON CONFLICT (group_id) DO UPDATE SET row_version = excluded.row_version;
    DELETE FROM offsets WHERE topic = my_name;
    DELETE FROM pending_offsets WHERE topic = my_name;
$$;
CREATE FUNCTION write_policy(policy_kind text, policy_name text, new_body text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF new_body IS NULL THEN
        DELETE FROM policies WHERE kind = policy_kind AND name = policy_name;
    ELSE
        INSERT INTO policies (kind, name, body) VALUES (policy_kind, policy_name, new_body)
        ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
    END IF;
END
$$;
CREATE FUNCTION write_features(new_version integer, new_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET transaction_version = new_version, features_epoch = new_epoch
    WHERE features_epoch < new_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the features have changed since they were loaded' USING ERRCODE = 'SM004';
    END IF;
END
$$;
CREATE FUNCTION delete_group(my_group text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM groups WHERE group_id = my_group;
    DELETE FROM offsets WHERE group_id = my_group;
    DELETE FROM pending_offsets WHERE group_id = my_group;
    DELETE FROM pending_versions WHERE group_id = my_group;
$$;
CREATE FUNCTION batch_holding(my_topic bytea, my_index integer, my_offset bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (
            SELECT CASE WHEN last_offset >= my_offset THEN base_offset ELSE my_offset END FROM batches
            WHERE topic_id = my_topic AND partition_index = my_index AND base_offset <= my_offset
            ORDER BY base_offset DESC LIMIT 1
        ), my_offset
    );
$$;
CREATE FUNCTION first_batch_since(my_topic bytea, my_index integer, my_timestamp bigint)
RETURNS SETOF batches LANGUAGE plpgsql STABLE AS $$
DECLARE
    edges partitions;
    probed batches;
    low bigint;
    high bigint;
    probe bigint;
BEGIN
    SELECT * INTO edges FROM partitions WHERE topic_id = my_topic AND partition_index = my_index;
    IF NOT FOUND OR edges.peak_timestamp < my_timestamp THEN
        RETURN;
    END IF;
    low := batch_holding(my_topic, my_index, edges.log_start_offset);
    high := edges.high_watermark;
    probe := low;
    WHILE low < high LOOP
        SELECT * INTO probed FROM batches
        WHERE topic_id = my_topic AND partition_index = my_index AND base_offset <= probe
        ORDER BY base_offset DESC LIMIT 1;
        IF NOT FOUND THEN
            low := probe + 1;
        ELSIF probed.peak_timestamp < my_timestamp THEN
            low := greatest(probed.last_offset, probe) + 1;
        ELSE
            high := least(probed.base_offset, high);
        END IF;
        probe := low + (high - low) / 2;
    END LOOP;
    RETURN QUERY SELECT each.* FROM batches AS stored CROSS JOIN LATERAL batches_in(stored) AS each
    WHERE stored.topic_id = my_topic AND stored.partition_index = my_index AND stored.base_offset >= low
    AND stored.max_timestamp >= my_timestamp
    AND each.max_timestamp >= my_timestamp AND each.last_offset >= edges.log_start_offset
    ORDER BY stored.base_offset, each.base_offset LIMIT 1;
END
$$;

CREATE OR REPLACE FUNCTION replace_batches(rewritten batches[], my_topic bytea, my_index integer, removed bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    changed bigint[] := removed || ARRAY(SELECT each.base_offset FROM unnest(rewritten) AS each);
BEGIN
    PERFORM FROM batches
    WHERE topic_id = my_topic AND partition_index = my_index
    AND base_offset >= batch_holding(my_topic, my_index, (SELECT min(each) FROM unnest(changed) AS each))
    AND base_offset <= (SELECT max(each) FROM unnest(changed) AS each)
    ORDER BY base_offset FOR UPDATE;
    PERFORM split_runs(my_topic, my_index, changed);
    INSERT INTO dropped
    SELECT old.chunk_id, old.position, old.length FROM batches AS old
    WHERE old.topic_id = my_topic AND old.partition_index = my_index
    AND (
        old.base_offset = ANY (removed)
        OR old.base_offset IN (SELECT each.base_offset FROM unnest(rewritten) AS each)
    );
    UPDATE batches SET
        max_timestamp = each.max_timestamp, chunk_id = each.chunk_id, position = each.position,
        length = each.length
    FROM unnest(rewritten) AS each
    WHERE batches.topic_id = my_topic AND batches.partition_index = my_index
    AND batches.base_offset = each.base_offset;
    DELETE FROM batches
    WHERE topic_id = my_topic AND partition_index = my_index AND base_offset = ANY (removed);
    DELETE FROM aborted
    WHERE topic_id = my_topic AND partition_index = my_index AND marker_offset = ANY (removed);
END
$$;

CREATE TYPE member AS (
    broker_id integer, epoch bigint, endpoints text, internal text, rack text, is_live boolean, is_leaving boolean
);
CREATE FUNCTION take_place(my_id integer, my_instance bytea, lease interval)
RETURNS TABLE (
    is_taken boolean, slot integer, epoch bigint, session bigint, sequence bigint, lease_until timestamptz,
    seconds_left double precision, internal text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO brokers (broker_id, instance, epoch, lease_until)
    SELECT my_id, my_instance, 1, clock_timestamp() + lease
    WHERE NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id)
    ON CONFLICT (broker_id) DO NOTHING;
    IF FOUND THEN
        UPDATE brokers SET next_producer_id = slot::bigint << 40 WHERE broker_id = my_id;
    ELSE
        UPDATE brokers SET
            instance = my_instance, epoch = brokers.epoch + 1, lease_until = clock_timestamp() + lease
        WHERE broker_id = my_id AND (instance = my_instance OR lease_until <= clock_timestamp());
        IF FOUND THEN
            DELETE FROM notices WHERE to_broker = my_id;
        END IF;
    END IF;
    RETURN QUERY SELECT
        instance = my_instance, slot, epoch, session, sequence, lease_until,
        extract(epoch FROM lease_until - clock_timestamp())::double precision, internal
    FROM brokers WHERE broker_id = my_id;
END
$$;
CREATE FUNCTION check_place(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id AND epoch = my_epoch) THEN
        RAISE EXCEPTION 'broker % has no epoch %: another process took its place', my_id, my_epoch
            USING ERRCODE = 'SM001';
    END IF;
END
$$;
CREATE FUNCTION lock_brokers(my_id integer, my_epoch bigint, others integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM brokers WHERE broker_id = my_id OR broker_id = ANY (others) ORDER BY broker_id FOR UPDATE;
    PERFORM check_place(my_id, my_epoch);
    LOCK TABLE shards IN SHARE ROW EXCLUSIVE MODE;
END
$$;
CREATE FUNCTION join_cluster(
    my_id integer, my_epoch bigint, lease interval, my_endpoints text, my_internal text, my_rack text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET
        lease_until = clock_timestamp() + lease, is_member = true, is_leaving = false,
        endpoints = my_endpoints, internal = my_internal, rack = my_rack
    WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;
CREATE FUNCTION renew_lease(
    my_id integer, my_epoch bigint, lease interval,
    OUT members member[], OUT owners integer[], OUT epochs bigint[], OUT notice_ids bigint[], OUT bodies bytea[],
    OUT time_of_day_ms bigint
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET lease_until = clock_timestamp() + lease WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
    SELECT array_agg(
        (broker_id, epoch, endpoints, internal, rack, lease_until > clock_timestamp(), is_leaving)::member
        ORDER BY broker_id
    ) INTO members FROM brokers WHERE is_member;
    SELECT array_agg(owner ORDER BY shard), array_agg(epoch ORDER BY shard) INTO owners, epochs FROM shards;
    SELECT array_agg(notice_id ORDER BY notice_id), array_agg(body ORDER BY notice_id) INTO notice_ids, bodies
    FROM notices WHERE to_broker = my_id AND to_epoch = my_epoch;
    time_of_day_ms := extract(epoch FROM clock_timestamp()) * 1000;
END
$$;
CREATE FUNCTION end_lease(my_id integer, my_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE brokers SET lease_until = least(lease_until, clock_timestamp())
    WHERE broker_id = my_id AND epoch = my_epoch;
$$;
CREATE FUNCTION give_shards(giver integer, given_shards integer[], new_owners integer[])
RETURNS void LANGUAGE sql AS $$
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners) AS given (shard, owner)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.owner = giver AND given.owner <> giver;
$$;
CREATE FUNCTION hand_over(
    my_id integer, my_epoch bigint, given_shards integer[], new_owners integer[], seen_epochs bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, new_owners);
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners, seen_epochs) AS given (shard, owner, epoch)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.epoch = given.epoch
    AND (shards.owner = my_id OR shards.owner IS NULL);
END
$$;
CREATE FUNCTION take_over(
    my_id integer, my_epoch bigint, dead_id integer, dead_epoch bigint, given_shards integer[], new_owners integer[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, dead_id || new_owners);
    UPDATE brokers SET epoch = epoch + 1, is_member = false
    WHERE broker_id = dead_id AND epoch = dead_epoch AND lease_until <= clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM notices WHERE to_broker = dead_id;
    PERFORM give_shards(dead_id, given_shards, new_owners);
    UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = dead_id;
    RETURN true;
END
$$;
CREATE FUNCTION leave_cluster(my_id integer, my_epoch bigint, given_shards integer[], new_owners integer[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, new_owners);
    UPDATE brokers SET is_member = false WHERE broker_id = my_id;
    PERFORM give_shards(my_id, given_shards, new_owners);
    UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = my_id;
    DELETE FROM notices WHERE to_broker = my_id;
    PERFORM end_lease(my_id, my_epoch);
END
$$;
CREATE FUNCTION announce_leaving(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET is_leaving = true WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;
CREATE FUNCTION leave_notice(my_id integer, my_epoch bigint, peer_id integer, peer_epoch bigint, new_body bytea)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    PERFORM check_place(my_id, my_epoch);
    INSERT INTO notices (to_broker, to_epoch, body)
    SELECT peer_id, peer_epoch, new_body FROM brokers WHERE broker_id = peer_id AND epoch = peer_epoch
    RETURNING notice_id INTO number;
    RETURN coalesce(number, 0);
END
$$;
CREATE FUNCTION is_live(peer_id integer, peer_epoch bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM brokers
        WHERE broker_id = peer_id AND epoch = peer_epoch AND lease_until > clock_timestamp()
    );
$$;
CREATE FUNCTION is_noticed(my_id integer, my_epoch bigint, peer_id integer, peer_epoch bigint, number bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(my_id, my_epoch);
    IF NOT EXISTS (SELECT FROM notices WHERE notice_id = number) THEN
        RETURN true;
    ELSIF is_live(peer_id, peer_epoch) THEN
        RETURN false;
    END IF;
    PERFORM FROM brokers WHERE broker_id = peer_id FOR SHARE;
    RETURN NOT is_live(peer_id, peer_epoch);
END
$$;
CREATE FUNCTION drop_notices(my_id integer, my_epoch bigint, numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(my_id, my_epoch);
    DELETE FROM notices WHERE notice_id = ANY (numbers) AND to_broker = my_id;
END
$$;

CREATE VIEW open_transactions AS
    SELECT
        transactions.transactional_id, transactions.producer_id, transactions.epoch, transactions.state,
        transactions.started_ms, nullif(transactions.deadline_ms, -1) AS deadline_ms, transactions.is_two_phase,
        topics.name AS topic, partitions.partition_index,
        nullif(producers.transaction_first_offset, -1) AS first_offset
    FROM transactions
    LEFT JOIN LATERAL json_array_elements(transactions.partitions::json) AS joined ON true
    LEFT JOIN topics ON topics.topic_id = decode(joined ->> 0, 'hex')
    LEFT JOIN partitions
        ON partitions.topic_id = topics.topic_id AND partitions.partition_index = (joined ->> 1)::integer
    LEFT JOIN producers
        ON producers.topic_id = partitions.topic_id AND producers.partition_index = partitions.partition_index
        AND producers.producer_id = transactions.producer_id
    WHERE transactions.state = 'Ongoing';
CREATE VIEW blocked_partitions AS
    SELECT
        topics.name AS topic, partitions.partition_index,
        greatest(oldest.transaction_first_offset, partitions.log_start_offset) AS last_stable_offset,
        partitions.high_watermark, oldest.producer_id, transactions.transactional_id, transactions.started_ms
    FROM partitions
    JOIN topics USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT producer_id, transaction_first_offset FROM producers
        WHERE producers.topic_id = partitions.topic_id
        AND producers.partition_index = partitions.partition_index AND transaction_first_offset >= 0
        ORDER BY transaction_first_offset LIMIT 1
    ) AS oldest
    LEFT JOIN transactions ON transactions.state = 'Ongoing' AND transactions.producer_id = oldest.producer_id
    WHERE length(partitions.open_transactions) > 0;
CREATE VIEW committed_offsets AS
    SELECT
        offsets.group_id, offsets.topic, offsets.partition_index, offsets.committed_offset, offsets.metadata,
        offsets.committed_ms, partitions.high_watermark,
        partitions.high_watermark - offsets.committed_offset AS behind
    FROM offsets
    LEFT JOIN topics ON topics.name = offsets.topic
    LEFT JOIN partitions
        ON partitions.topic_id = topics.topic_id AND partitions.partition_index = offsets.partition_index;
CREATE VIEW pending AS
    SELECT
        pending_offsets.group_id, pending_offsets.topic, pending_offsets.partition_index,
        pending_offsets.committed_offset, pending_offsets.committed_ms, pending_offsets.is_superseded,
        pending_offsets.producer_id, transactions.transactional_id
    FROM pending_offsets
    LEFT JOIN transactions
        ON transactions.state = 'Ongoing' AND transactions.producer_id = pending_offsets.producer_id;
