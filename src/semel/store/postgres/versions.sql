-- Versions of entities: who commits, what it expects, and how both are checked.

-- Who commits: its place in brokers, the number that the commit gets, and the term that it was decided in.
CREATE TYPE claim AS (
    broker_id integer, epoch bigint, session bigint, sequence bigint, term bigint, is_synced boolean,
    next_producer_id bigint
);

CREATE TYPE named_version AS (name text, row_version bigint);
CREATE TYPE partition_version AS (topic_id bytea, partition_index integer, row_version bigint);
CREATE TYPE producer_version AS (
    topic_id bytea, partition_index integer, producer_id bigint, row_version bigint
);

-- The versions that a commit was decided on, ordered by key; 0 of what does not exist. present has for each kind how
-- many do exist, and writes whether the commit writes any of them. absent has the shards of entities that do not exist,
-- or of which that is not known, in order.
CREATE TYPE expectations AS (
    topics named_version[], partitions partition_version[], producers producer_version[],
    transactions named_version[], groups named_version[], pending named_version[],
    present integer[], writes boolean[], absent integer[]
);

-- Locks entities until the end of the transaction, all brokers in the same order: first the shards of those that do not
-- exist, then rows by kind and key. If a commit writes any row of a kind, it locks all of that kind for writing: two
-- commits that each write what the other reads would else wait for each other. Returns whether all have the expected
-- versions.
CREATE FUNCTION lock_entities(wanted expectations) RETURNS boolean LANGUAGE plpgsql AS $$
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
    -- The producers of a deleted partition do not exist, though the sweep has yet to delete them.
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
    RETURN holds;
END
$$;

-- The entities that do not have the expected versions, as a JSON array of pairs: the kind and the position of each.
CREATE FUNCTION moved_entities(expected expectations) RETURNS text LANGUAGE sql AS $$
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
    ) AS each_moved;
$$;

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

-- Writes the number of a commit into the row of its broker. Every commit does this last: it fails if the term is over,
-- or if the broker was replaced. Then nothing of it is written.
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
        END IF;
    END IF;
    RETURN found_term;
END
$$;
