-- How a commit writes the rows of most tables.

-- The generation of the next version of a row (schema.sql). It need not change at fixed intervals, so nothing counts them.
CREATE FUNCTION next_generation(last bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT last + CASE WHEN random() < 1.0 / 16 THEN 1 ELSE 0 END;
$$;

-- Fails if another commit has added or changed a row meanwhile, which is possible only for rows that this commit has not
-- locked. Then the commit is repeated.
CREATE FUNCTION check_written(written integer, wanted integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF written <> wanted THEN
        RAISE EXCEPTION 'another commit has changed the same rows' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- Writes rows, many of each table. Of each key there is at most one row. An existing row is found by its newest generation,
-- and then by its ctid: for a join by key, the planner would rather read all of a small table, with all of its old
-- versions. Other rows are added; their shards are locked.
CREATE FUNCTION write_rows(
    new_partitions partitions[], new_batches batches[], new_aborted aborted[],
    new_producers producers[], gone_producers producers[],
    new_offsets offsets[], gone_offsets offsets[],
    new_transactions transactions[], gone_transactions text[],
    pending_groups pending_versions[], new_pending pending_offsets[],
    new_groups groups[], new_leftovers leftovers[], new_dropped dropped[], new_objects objects[],
    new_chunks chunks[], new_bytes inline_bytes[]
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    written integer;
    added integer;
BEGIN
    IF cardinality(new_partitions) > 0 THEN
        UPDATE partitions SET
            log_start_offset = each.log_start_offset, high_watermark = each.high_watermark,
            peak_timestamp = each.peak_timestamp, size_bytes = each.size_bytes,
            open_transactions = each.open_transactions, last_aborted_offset = each.last_aborted_offset,
            cleaned_offset = each.cleaned_offset, compactions = each.compactions,
            row_version = each.row_version, generation = next_generation(partitions.generation)
        FROM unnest(new_partitions) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM partitions
            WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE partitions.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_partitions) THEN
            INSERT INTO partitions SELECT * FROM unnest(new_partitions) AS each WHERE (
                SELECT true FROM partitions
                WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_partitions));
        END IF;
    END IF;
    IF cardinality(new_batches) > 0 THEN
        INSERT INTO batches SELECT * FROM unnest(new_batches);
    END IF;
    IF cardinality(new_aborted) > 0 THEN
        INSERT INTO aborted SELECT * FROM unnest(new_aborted);
    END IF;
    IF cardinality(new_producers) > 0 THEN
        UPDATE producers SET
            epoch = each.epoch, recent_batches = each.recent_batches, last_timestamp = each.last_timestamp,
            seen_ms = each.seen_ms, coordinator_epoch = each.coordinator_epoch,
            transaction_first_offset = each.transaction_first_offset, staged = each.staged,
            row_version = each.row_version, generation = next_generation(producers.generation)
        FROM unnest(new_producers) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM producers
            WHERE producers.topic_id = each.topic_id AND producers.partition_index = each.partition_index
            AND producers.producer_id = each.producer_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE producers.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_producers) THEN
            INSERT INTO producers SELECT * FROM unnest(new_producers) AS each WHERE (
                SELECT true FROM producers
                WHERE producers.topic_id = each.topic_id AND producers.partition_index = each.partition_index
                AND producers.producer_id = each.producer_id
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_producers));
        END IF;
    END IF;
    IF cardinality(gone_producers) > 0 THEN
        DELETE FROM producers USING unnest(gone_producers) AS gone
        WHERE producers.topic_id = gone.topic_id AND producers.partition_index = gone.partition_index
        AND producers.producer_id = gone.producer_id;
    END IF;
    IF cardinality(new_offsets) > 0 THEN
        UPDATE offsets SET
            committed_offset = each.committed_offset, leader_epoch = each.leader_epoch,
            metadata = each.metadata, committed_ms = each.committed_ms,
            generation = next_generation(offsets.generation)
        FROM unnest(new_offsets) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM offsets
            WHERE offsets.group_id = each.group_id AND offsets.topic = each.topic
            AND offsets.partition_index = each.partition_index
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE offsets.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_offsets) THEN
            -- No version covers an offset that is committed outside of a transaction.
            PERFORM pg_advisory_xact_lock(hashtext(current_schema()), shard) FROM (
                SELECT DISTINCT shard FROM unnest(new_offsets) ORDER BY shard
            ) AS each;
            INSERT INTO offsets SELECT * FROM unnest(new_offsets) AS each WHERE (
                SELECT true FROM offsets
                WHERE offsets.group_id = each.group_id AND offsets.topic = each.topic
                AND offsets.partition_index = each.partition_index
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_offsets));
        END IF;
    END IF;
    IF cardinality(gone_offsets) > 0 THEN
        DELETE FROM offsets USING unnest(gone_offsets) AS gone
        WHERE offsets.group_id = gone.group_id AND offsets.topic = gone.topic
        AND offsets.partition_index = gone.partition_index;
    END IF;
    IF cardinality(new_transactions) > 0 THEN
        UPDATE transactions SET
            producer_id = each.producer_id, epoch = each.epoch, timeout_ms = each.timeout_ms,
            state = each.state, partitions = each.partitions, groups = each.groups,
            started_ms = each.started_ms, updated_ms = each.updated_ms, deadline_ms = each.deadline_ms,
            previous_producer_id = each.previous_producer_id, last_epoch = each.last_epoch,
            version = each.version, term = each.term, is_two_phase = each.is_two_phase,
            prepared_epoch = each.prepared_epoch, row_version = each.row_version, shares = each.shares,
            generation = next_generation(transactions.generation)
        FROM unnest(new_transactions) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM transactions
            WHERE transactions.transactional_id = each.transactional_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE transactions.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_transactions) THEN
            INSERT INTO transactions SELECT * FROM unnest(new_transactions) AS each WHERE (
                SELECT true FROM transactions
                WHERE transactions.transactional_id = each.transactional_id
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_transactions));
        END IF;
    END IF;
    IF cardinality(gone_transactions) > 0 THEN
        DELETE FROM transactions WHERE transactional_id = ANY (gone_transactions);
    END IF;
    IF cardinality(pending_groups) > 0 THEN
        DELETE FROM pending_offsets USING unnest(pending_groups) AS each CROSS JOIN LATERAL (
            SELECT row_version FROM pending_versions
            WHERE pending_versions.group_id = each.group_id ORDER BY generation DESC LIMIT 1
        ) AS newest CROSS JOIN LATERAL (
            SELECT ctid AS place FROM pending_offsets
            WHERE pending_offsets.group_id = each.group_id AND pending_offsets.row_version = newest.row_version
            OFFSET 0
        ) AS old
        WHERE pending_offsets.ctid = old.place;
        UPDATE pending_versions SET
            row_version = each.row_version, generation = next_generation(pending_versions.generation)
        FROM unnest(pending_groups) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM pending_versions
            WHERE pending_versions.group_id = each.group_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE pending_versions.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(pending_groups) THEN
            INSERT INTO pending_versions SELECT * FROM unnest(pending_groups) AS each WHERE (
                SELECT true FROM pending_versions
                WHERE pending_versions.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(pending_groups));
        END IF;
        INSERT INTO pending_offsets SELECT * FROM unnest(new_pending);
    END IF;
    IF cardinality(new_groups) > 0 THEN
        UPDATE groups SET
            kind = each.kind, protocol_type = each.protocol_type, state = each.state,
            body = each.body, row_version = each.row_version, generation = next_generation(groups.generation)
        FROM unnest(new_groups) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM groups
            WHERE groups.group_id = each.group_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE groups.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_groups) THEN
            INSERT INTO groups SELECT * FROM unnest(new_groups) AS each WHERE (
                SELECT true FROM groups
                WHERE groups.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_groups));
        END IF;
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

-- Keeps the bytes of small commits. A commit that read the generation before it changed writes to the previous table; the
-- roller looks for such rows before it truncates.
CREATE FUNCTION keep_inline(new_bytes inline_bytes[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    current integer := (
        SELECT generation FROM inline_generation ORDER BY since DESC LIMIT 1
    );
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

-- A whole commit: checks what it expects, writes rows, and counts it. If entities have moved, it writes nothing and
-- returns which (moved_entities). That is no error: a server logs errors, and conflicts are ordinary.
CREATE FUNCTION commit_rows(
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
        -- There is nothing to flush but locks.
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

-- Writes and removes share-partitions. Of each key there is at most one row.
CREATE FUNCTION write_shares(new_shares shares[], gone_shares shares[])
RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    written integer;
    added integer;
BEGIN
    IF cardinality(new_shares) > 0 THEN
        UPDATE shares SET
            start_offset = each.start_offset, epoch = each.epoch, runs = each.runs,
            row_version = each.row_version, generation = next_generation(shares.generation)
        FROM unnest(new_shares) AS each CROSS JOIN LATERAL (
            SELECT ctid AS place FROM shares
            WHERE shares.topic_id = each.topic_id AND shares.partition_index = each.partition_index
            AND shares.group_id = each.group_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE shares.ctid = newest.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(new_shares) THEN
            INSERT INTO shares SELECT * FROM unnest(new_shares) AS each WHERE (
                SELECT true FROM shares
                WHERE shares.topic_id = each.topic_id AND shares.partition_index = each.partition_index
                AND shares.group_id = each.group_id
                ORDER BY generation DESC LIMIT 1
            ) IS NULL;
            GET DIAGNOSTICS added = ROW_COUNT;
            PERFORM check_written(written + added, cardinality(new_shares));
        END IF;
    END IF;
    IF cardinality(gone_shares) > 0 THEN
        DELETE FROM shares USING unnest(gone_shares) AS gone
        WHERE shares.topic_id = gone.topic_id AND shares.partition_index = gone.partition_index
        AND shares.group_id = gone.group_id;
    END IF;
END
$$;

-- Adds a topic, or changes it; new partitions are empty.
CREATE FUNCTION put_topic(
    my_name text, my_topic bytea, my_partitions integer, my_configs text, my_version bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO topics VALUES (my_name, my_topic, my_partitions, my_configs, my_version)
    ON CONFLICT (topic_id) DO UPDATE SET
        partitions = excluded.partitions, configs = excluded.configs, row_version = excluded.row_version;
    INSERT INTO partitions
    SELECT my_topic, index, 0, 0, -1, 0, ''::bytea, -1, 0, 0, my_version
    FROM generate_series(0, my_partitions - 1) AS index
    WHERE NOT EXISTS (SELECT FROM partitions WHERE topic_id = my_topic AND partition_index = index);
END
$$;

-- Deletes a topic with its partitions and every group's offsets on it: these groups get a new version. Its batches and
-- producers are left to the sweep.
CREATE FUNCTION delete_topic(my_name text, my_topic bytea, my_version bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    changed text[];
BEGIN
    WITH taken AS (
        DELETE FROM staged WHERE topic_id = my_topic RETURNING chunk_id, position, length
    )
    INSERT INTO dropped SELECT * FROM taken;
    INSERT INTO leftovers
    SELECT topic_id, partition_index, 9223372036854775807 FROM partitions WHERE topic_id = my_topic
    ON CONFLICT (topic_id, partition_index) DO UPDATE SET below_offset = excluded.below_offset;
    DELETE FROM partitions WHERE topic_id = my_topic;
    DELETE FROM topics WHERE topic_id = my_topic;
    changed := ARRAY(
        SELECT group_id FROM offsets WHERE topic = my_name
        UNION
        SELECT group_id FROM pending_offsets WHERE topic = my_name
        ORDER BY group_id
    );
    UPDATE pending_versions SET row_version = my_version WHERE group_id = ANY (changed);
    INSERT INTO pending_versions SELECT name, my_version FROM unnest(changed) AS name
    WHERE NOT EXISTS (SELECT FROM pending_versions WHERE group_id = name);
    DELETE FROM offsets WHERE topic = my_name;
    DELETE FROM pending_offsets WHERE topic = my_name;
    UPDATE pending_offsets SET row_version = my_version WHERE group_id = ANY (changed);
END
$$;
