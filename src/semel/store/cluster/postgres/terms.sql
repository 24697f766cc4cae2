-- The terms that have begun.

-- Each has an id that no other server has: after a failover, a server without the newest one was left behind
-- (semel.store.cluster.postgres.servers). is_noted tells whether the object store has it too (semel.store.cluster.postgres.terms).
CREATE TABLE terms (
    term     bigint NOT NULL PRIMARY KEY,
    term_id  text NOT NULL,
    is_noted boolean NOT NULL DEFAULT false
);

-- Returns the current term. Begins the next one if the server has lost it.
CREATE FUNCTION current_term() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_term bigint;
BEGIN
    SELECT term INTO found_term FROM term;
    IF NOT FOUND THEN
        PERFORM FROM cluster FOR UPDATE;
        -- Another broker may have begun it meanwhile.
        SELECT term INTO found_term FROM term;
        IF NOT FOUND THEN
            UPDATE cluster SET last_term = last_term + 1 RETURNING last_term INTO found_term;
            INSERT INTO term VALUES (found_term);
            INSERT INTO terms VALUES (found_term, gen_random_uuid());
        END IF;
    END IF;
    RETURN found_term;
END
$$;

-- Skips all numbers and terms that may have been used after a backup. For operators who have restored one.
CREATE FUNCTION skip_numbers() RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    DELETE FROM term;
    UPDATE cluster SET last_term = last_term + 1000000;
    INSERT INTO terms SELECT last_term, 'skipped', true FROM cluster;
    WITH skipped AS MATERIALIZED (
        SELECT setval('chunk_ids', last_value + 1000000000000) AS last FROM chunk_ids
    )
    UPDATE numbering SET last_object = last FROM skipped RETURNING last_object;
$$;
