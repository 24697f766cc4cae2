-- How a commit writes the rows of most tables. Also run by an upgrade (opening.py).

-- Writes rows, many of each table. Of each key there is at most one row.
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

-- A whole commit: checks what it expects, writes rows, and counts it. If entities have moved, it writes nothing and
-- returns which (moved_entities). That is no error: a server logs errors, and conflicts are ordinary.
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
