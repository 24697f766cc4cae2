-- Where the bytes of batches are. The bytes of one commit are a chunk: in an object of the object store, or, if they are
-- few, in rows of this database until the roller has moved them to an object (semel.store.cluster.bytes.roller).

-- Numbers of chunks and objects. A broker takes a block of them, and none is ever used twice.
CREATE SEQUENCE chunk_ids INCREMENT BY 1000;

-- Chunks. live_bytes of them are referenced by batches, staged and dropped; a chunk without a row is an orphan. They are
-- in an object, from object_position on, or in inline_bytes if object_id is null.
CREATE TABLE chunks (
    chunk_id        bigint NOT NULL PRIMARY KEY CHECK (chunk_id >= 1),
    live_bytes      bigint NOT NULL CHECK (live_bytes >= 0),
    object_id       bigint CHECK (object_id >= 1),
    object_position bigint NOT NULL CHECK (object_position >= 0)
) WITH (fillfactor = 70);

-- For deleting an object that no chunk is in.
CREATE INDEX chunks_by_object ON chunks (object_id) WHERE object_id IS NOT NULL;

-- Every object that may be in the object store. It has a row before it is uploaded and until its deletion is confirmed.
-- uploading: reserved by a broker, which may use the number for a while. stored: chunks are in it. unused: no chunk is in
-- it any more, but a reader may have looked it up before. abandoned: reserved before a time without any broker. deleting:
-- no commit may refer to it again. since: the beginning of the state, by the clock of this database.
CREATE TABLE objects (
    object_id  bigint NOT NULL PRIMARY KEY CHECK (object_id >= 1),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    state      text NOT NULL CHECK (state IN ('uploading', 'stored', 'unused', 'abandoned', 'deleting')),
    since      timestamptz NOT NULL
);

-- For finding the objects to delete: few objects are not stored.
CREATE INDEX objects_to_delete ON objects (since) WHERE state <> 'stored';

-- Makes objects part of the ledger, in the commit that refers to them. It fails if a number was not reserved, or so long
-- ago that the object may be deleted.
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

-- The bytes of small commits. They are compressed already, if the client wanted that. Commits write to one of these
-- tables, the current generation. The roller makes the next one current, moves the rows of the last one to objects and
-- truncates it, so no row is ever deleted one by one and nothing is left to vacuum.
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

-- The table that commits write to, and since when.
CREATE TABLE inline_generation (
    only_one   boolean NOT NULL PRIMARY KEY CHECK (only_one),
    generation integer NOT NULL CHECK (generation BETWEEN 0 AND 3),
    since      timestamptz NOT NULL
);
INSERT INTO inline_generation VALUES (true, 0, clock_timestamp());

-- For the newest version (generation in schema.sql): every commit looks for it.
CREATE INDEX inline_generation_newest ON inline_generation (since);

-- How far the rows of a partition are merged into runs.
CREATE TABLE merged (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL,
    next_offset     bigint NOT NULL CHECK (next_offset >= 0),
    PRIMARY KEY (topic_id, partition_index)
) WITH (fillfactor = 70);

-- Ends and lengths of all batches, including those within a run. row_offset is the base offset of their row, and number
-- their position in it.
CREATE VIEW batch_sizes AS
    SELECT topic_id, partition_index, base_offset AS row_offset, base_offset + each.ends AS last_offset,
        each.length, each.number
    FROM batches CROSS JOIN LATERAL unnest(
        coalesce(run_ends, ARRAY[(last_offset - base_offset)::integer]),
        coalesce(run_lengths, ARRAY[length::integer])
    ) WITH ORDINALITY AS each (ends, length, number);

-- The batches of a row: the single batch, or those within the run. All of them get the peak of the run, because a search
-- by time then only begins earlier.
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

-- Splits the runs that hold these offsets into one row per batch. Their bytes stay where they are.
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
