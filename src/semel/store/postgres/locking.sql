-- How the entities that a commit expects are locked and compared. Also run by an upgrade (opening.py).

-- Locks entities until the end of the transaction, all brokers in the same order: first the shards of those that do not
-- exist, then rows by kind and key. If a commit writes any row of a kind, it locks all of that kind for writing: two
-- commits that each write what the other reads would else wait for each other. Returns whether all have the expected
-- versions.
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

-- The entities that do not have the expected versions, as a JSON array of pairs: the kind and the position of each.
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
