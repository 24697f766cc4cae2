-- How the entities that a commit expects are locked and compared. The newest version of a row is looked up by its
-- generation (schema.sql).

-- Locks entities until the end of the transaction, all brokers in the same order: first the shards of those that do not
-- exist, then rows by kind and key. If a commit writes any row of a kind, it locks all of that kind for writing. Otherwise
-- two commits that each write what the other reads would wait for each other. Returns whether all have the expected
-- versions.
CREATE FUNCTION lock_entities(wanted expectations)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
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
            SELECT count(*) = wanted.present[2] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.partitions) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest;
        ELSE
            SELECT count(*) = wanted.present[2] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.partitions) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest;
        END IF;
        holds := holds AND is_same;
    END IF;
    -- The producers of a deleted partition do not exist, though the sweep has yet to delete them.
    IF cardinality(wanted.producers) > 0 THEN
        IF wanted.writes[3] THEN
            SELECT count(*) = wanted.present[3] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.producers) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM producers
                WHERE producers.topic_id = each.topic_id
                AND producers.partition_index = each.partition_index AND producers.producer_id = each.producer_id
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest WHERE (
                SELECT true FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1
            );
        ELSE
            SELECT count(*) = wanted.present[3] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.producers) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM producers
                WHERE producers.topic_id = each.topic_id
                AND producers.partition_index = each.partition_index AND producers.producer_id = each.producer_id
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest WHERE (
                SELECT true FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1
            );
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.transactions) > 0 THEN
        IF wanted.writes[4] THEN
            SELECT count(*) = wanted.present[4] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.transactions) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM transactions
                WHERE transactions.transactional_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest;
        ELSE
            SELECT count(*) = wanted.present[4] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.transactions) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM transactions
                WHERE transactions.transactional_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.groups) > 0 THEN
        IF wanted.writes[5] THEN
            SELECT count(*) = wanted.present[5] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.groups) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM groups
                WHERE groups.group_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest;
        ELSE
            SELECT count(*) = wanted.present[5] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.groups) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM groups
                WHERE groups.group_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.pending) > 0 THEN
        IF wanted.writes[6] THEN
            SELECT count(*) = wanted.present[6] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.pending) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM pending_versions
                WHERE pending_versions.group_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest;
        ELSE
            SELECT count(*) = wanted.present[6] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.pending) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM pending_versions
                WHERE pending_versions.group_id = each.name
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest;
        END IF;
        holds := holds AND is_same;
    END IF;
    IF cardinality(wanted.shares) > 0 THEN
        IF wanted.writes[7] THEN
            SELECT count(*) = wanted.present[7] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.shares) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM shares
                WHERE shares.topic_id = each.topic_id
                AND shares.partition_index = each.partition_index AND shares.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1 FOR UPDATE
            ) AS newest;
        ELSE
            SELECT count(*) = wanted.present[7] AND coalesce(bool_and(newest.row_version = each.row_version), true)
            INTO is_same FROM unnest(wanted.shares) AS each CROSS JOIN LATERAL (
                SELECT row_version FROM shares
                WHERE shares.topic_id = each.topic_id
                AND shares.partition_index = each.partition_index AND shares.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1 FOR SHARE
            ) AS newest;
        END IF;
        holds := holds AND is_same;
    END IF;
    RETURN holds;
END
$$;

-- The entities that do not have the expected versions, as a JSON array of pairs: the kind and the position of each.
CREATE FUNCTION moved_entities(expected expectations) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_array(kind, ordinality - 1)) FROM (
            SELECT 0 AS kind, ordinality, each.row_version, (
                SELECT row_version FROM topics WHERE topics.name = each.name
            ) AS actual_version
            FROM unnest(expected.topics) WITH ORDINALITY AS each
            UNION ALL
            SELECT 1, ordinality, each.row_version, (
                SELECT row_version FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.partitions) WITH ORDINALITY AS each
            UNION ALL
            SELECT 2, ordinality, each.row_version, (
                SELECT row_version FROM producers
                WHERE producers.topic_id = each.topic_id
                AND producers.partition_index = each.partition_index AND producers.producer_id = each.producer_id
                AND (
                    SELECT true FROM partitions
                    WHERE partitions.topic_id = each.topic_id
                    AND partitions.partition_index = each.partition_index
                    ORDER BY generation DESC LIMIT 1
                )
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.producers) WITH ORDINALITY AS each
            UNION ALL
            SELECT 3, ordinality, each.row_version, (
                SELECT row_version FROM transactions
                WHERE transactions.transactional_id = each.name
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.transactions) WITH ORDINALITY AS each
            UNION ALL
            SELECT 4, ordinality, each.row_version, (
                SELECT row_version FROM groups
                WHERE groups.group_id = each.name
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.groups) WITH ORDINALITY AS each
            UNION ALL
            SELECT 5, ordinality, each.row_version, (
                SELECT row_version FROM pending_versions
                WHERE pending_versions.group_id = each.name
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.pending) WITH ORDINALITY AS each
            UNION ALL
            SELECT 6, ordinality, each.row_version, (
                SELECT row_version FROM shares
                WHERE shares.topic_id = each.topic_id
                AND shares.partition_index = each.partition_index AND shares.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1
            )
            FROM unnest(expected.shares) WITH ORDINALITY AS each
        ) AS each_expected
        WHERE coalesce(actual_version, 0) <> row_version
    );
END
$$;
