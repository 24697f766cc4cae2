-- Versions of entities: which broker commits, what it expects, and how both are checked. locking.sql locks and compares
-- them.

-- The broker that commits: its place in brokers, the number that the commit gets, and the term that it was decided in.
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

-- The versions that a commit was decided on, ordered by key; 0 for an entity that does not exist. present has for each
-- kind how many exist, and writes whether the commit writes any of the kind. absent has the shards of entities that do
-- not exist, or are not known to exist, in order.
CREATE TYPE expectations AS (
    topics named_version[], partitions partition_version[], producers producer_version[],
    transactions named_version[], groups named_version[], pending named_version[],
    present integer[], writes boolean[], absent integer[], shares share_version[]
);

-- Checks that entities have the expected versions, and locks them so that they keep them until the end of the
-- transaction. The error's detail tells which have moved.
CREATE FUNCTION check_versions(expected expectations) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_entities(expected) THEN
        RAISE EXCEPTION 'entities have changed since they were loaded'
            USING ERRCODE = 'SM003', DETAIL = coalesce(moved_entities(expected), '[]');
    END IF;
END
$$;
