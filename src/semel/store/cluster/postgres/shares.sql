-- Share-partitions: what share groups have done with the records of partitions.

-- Below start_offset everything is settled; -1 if no member has fetched yet. runs is a JSON array of runs of offsets in
-- the same state, without gaps: the first and the last offset, the state (0 available, 2 acknowledged, 4 archived, 16
-- pending), how often they were delivered, and what the end of a transaction makes of pending ones: its producer, whether
-- a commit makes them acknowledged or archived, whether an abort makes them archived or available, and which member has
-- acknowledged them.
CREATE TABLE shares (
    topic_id        bytea NOT NULL,
    partition_index integer NOT NULL CHECK (partition_index >= 0),
    group_id        text COLLATE "C" NOT NULL,
    start_offset    bigint NOT NULL CHECK (start_offset >= -1),
    epoch           bigint NOT NULL CHECK (epoch >= 0),
    runs            text NOT NULL,
    row_version     bigint NOT NULL CHECK (row_version >= 1),
    generation      bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX shares_newest ON shares (topic_id, partition_index, group_id, generation);

-- A whole commit that only changes share-partitions: the counterpart of commit_rows
-- (write_shares is in writing.sql).
CREATE FUNCTION commit_shares(
    mine claim, expected expectations, new_shares shares[], gone_shares shares[]
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_entities(expected) THEN
        -- There is nothing to flush but locks.
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN coalesce(moved_entities(expected), '[]');
    END IF;
    PERFORM write_shares(new_shares, gone_shares);
    PERFORM count_commit(mine);
    RETURN NULL;
END
$$;

-- Removes the share-partitions of a deleted topic.
CREATE FUNCTION delete_shares_of_topic(my_topic bytea) RETURNS void LANGUAGE sql AS $$
    DELETE FROM shares WHERE topic_id = my_topic;
$$;
