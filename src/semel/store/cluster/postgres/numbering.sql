-- Numbers of objects that were reserved.

-- The largest of them, to recognize objects that are newer than the ledger. A sequence would not do: PostgreSQL writes it
-- to its log 32 steps ahead, so it is ahead after a crash or a restore.
CREATE TABLE numbering (
    last_object bigint NOT NULL
);
INSERT INTO numbering VALUES (0);

-- Reserves numbers for objects, and returns the first.
CREATE FUNCTION reserve_objects(how_many integer) RETURNS bigint LANGUAGE sql AS $$
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
