-- What a commit calls in the database. The functions only store: every decision was made before, and every value that
-- they write is complete. A commit that only writes rows is one call (commit_rows), so it is one round trip.

-- Keeps batches until the outcome of their transaction is known, in the order of the array.
CREATE FUNCTION stage_batches(new_staged staged[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO staged (
        topic_id, partition_index, producer_id, offsets, max_timestamp, chunk_id, position, length
    )
    SELECT topic_id, partition_index, producer_id, offsets, max_timestamp, chunk_id, position, length
    FROM unnest(new_staged) WITH ORDINALITY AS each ORDER BY ordinality;
$$;

-- Moves what a producer staged in a partition to its log, in order from a given offset. The peak is that of the
-- partition so far. Returns the last offset and its peak.
CREATE FUNCTION commit_staged(
    my_topic bytea, my_index integer, my_producer bigint, first_offset bigint, peak_before bigint,
    OUT last_offset bigint, OUT last_peak bigint
) LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM staged
        WHERE topic_id = my_topic AND partition_index = my_index AND producer_id = my_producer
        RETURNING *
    ),
    moved AS (
        INSERT INTO batches
        SELECT
            topic_id, partition_index, first_offset + sum(offsets) OVER earlier - offsets,
            first_offset + sum(offsets) OVER earlier - 1, max_timestamp,
            greatest(peak_before, max(max_timestamp) OVER earlier), chunk_id, position, length
        FROM taken
        WINDOW earlier AS (ORDER BY stage_number)
        RETURNING last_offset, peak_timestamp
    )
    SELECT max(moved.last_offset), max(peak_timestamp) FROM moved;
$$;

-- Leaves what a producer staged in a partition to the sweep.
CREATE FUNCTION drop_staged(my_topic bytea, my_index integer, my_producer bigint)
RETURNS void LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM staged
        WHERE topic_id = my_topic AND partition_index = my_index AND producer_id = my_producer
        RETURNING chunk_id, position, length
    )
    INSERT INTO dropped SELECT * FROM taken;
$$;

-- Writes the new value of a policy, or removes it (NULL).
CREATE FUNCTION write_policy(policy_kind text, policy_name text, new_body text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF new_body IS NULL THEN
        DELETE FROM policies WHERE kind = policy_kind AND name = policy_name;
    ELSE
        INSERT INTO policies (kind, name, body) VALUES (policy_kind, policy_name, new_body)
        ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
    END IF;
END
$$;

-- Writes the new value of the feature, if no other commit has written one meanwhile.
CREATE FUNCTION write_features(new_version integer, new_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET transaction_version = new_version, features_epoch = new_epoch
    WHERE features_epoch < new_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the features have changed since they were loaded' USING ERRCODE = 'SM004';
    END IF;
END
$$;

-- Deletes a group with all its offsets.
CREATE FUNCTION delete_group(my_group text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM groups WHERE group_id = my_group;
    DELETE FROM offsets WHERE group_id = my_group;
    DELETE FROM pending_offsets WHERE group_id = my_group;
    DELETE FROM pending_versions WHERE group_id = my_group;
$$;

-- The base offset of the batch that holds an offset; the offset itself if there is none.
CREATE FUNCTION batch_holding(my_topic bytea, my_index integer, my_offset bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (
            SELECT CASE WHEN last_offset >= my_offset THEN base_offset ELSE my_offset END FROM batches
            WHERE topic_id = my_topic AND partition_index = my_index AND base_offset <= my_offset
            ORDER BY base_offset DESC LIMIT 1
        ), my_offset
    );
$$;

-- The first batch whose largest timestamp is at or after a given one. A binary search by peak timestamp, which never
-- falls. After a log start the peak may be that of a deleted batch, so the last step goes forward to a batch that holds
-- the timestamp itself.
CREATE FUNCTION first_batch_since(my_topic bytea, my_index integer, my_timestamp bigint)
RETURNS SETOF batches LANGUAGE plpgsql STABLE AS $$
DECLARE
    edges partitions;
    probed batches;
    low bigint;
    high bigint;
    probe bigint;
BEGIN
    SELECT * INTO edges FROM partitions WHERE topic_id = my_topic AND partition_index = my_index;
    IF NOT FOUND OR edges.peak_timestamp < my_timestamp THEN
        RETURN;
    END IF;
    low := batch_holding(my_topic, my_index, edges.log_start_offset);
    high := edges.high_watermark;
    probe := low;
    -- Batches before low have a peak below the timestamp; the one that holds high, if any, has not.
    WHILE low < high LOOP
        SELECT * INTO probed FROM batches
        WHERE topic_id = my_topic AND partition_index = my_index AND base_offset <= probe
        ORDER BY base_offset DESC LIMIT 1;
        -- Compaction leaves gaps: there may be no batch so early, or none since the last probe.
        IF NOT FOUND THEN
            low := probe + 1;
        ELSIF probed.peak_timestamp < my_timestamp THEN
            low := greatest(probed.last_offset, probe) + 1;
        ELSE
            high := least(probed.base_offset, high);
        END IF;
        probe := low + (high - low) / 2;
    END LOOP;
    RETURN QUERY SELECT each.* FROM batches AS stored CROSS JOIN LATERAL batches_in(stored) AS each
    WHERE stored.topic_id = my_topic AND stored.partition_index = my_index AND stored.base_offset >= low
    AND stored.max_timestamp >= my_timestamp
    AND each.max_timestamp >= my_timestamp AND each.last_offset >= edges.log_start_offset
    ORDER BY stored.base_offset, each.base_offset LIMIT 1;
END
$$;
