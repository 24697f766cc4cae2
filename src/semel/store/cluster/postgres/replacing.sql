-- How compaction replaces batches.

-- Gives batches new locations, or removes them. Their old bytes are left to the sweep. The peak of a rewritten batch
-- stays, even if the record that had it is gone: a search then only begins earlier. Nothing else was left of an
-- aborted transaction whose marker is removed.
CREATE FUNCTION replace_batches(rewritten batches[], my_topic bytea, my_index integer, removed bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    changed bigint[] := removed || ARRAY(SELECT each.base_offset FROM unnest(rewritten) AS each);
BEGIN
    -- The merger may be replacing these rows: wait for it, so that the next statement sees the run that it made. Otherwise
    -- both would give the old bytes to the sweep, and the bytes of another partition would be freed with them.
    PERFORM FROM batches
    WHERE topic_id = my_topic AND partition_index = my_index
    AND base_offset >= batch_holding(my_topic, my_index, (SELECT min(each) FROM unnest(changed) AS each))
    AND base_offset <= (SELECT max(each) FROM unnest(changed) AS each)
    ORDER BY base_offset FOR UPDATE;
    PERFORM split_runs(my_topic, my_index, changed);
    INSERT INTO dropped
    SELECT old.chunk_id, old.position, old.length FROM batches AS old
    WHERE old.topic_id = my_topic AND old.partition_index = my_index
    AND (
        old.base_offset = ANY (removed)
        OR old.base_offset IN (SELECT each.base_offset FROM unnest(rewritten) AS each)
    );
    UPDATE batches SET
        max_timestamp = each.max_timestamp, chunk_id = each.chunk_id, position = each.position,
        length = each.length
    FROM unnest(rewritten) AS each
    WHERE batches.topic_id = my_topic AND batches.partition_index = my_index
    AND batches.base_offset = each.base_offset;
    DELETE FROM batches
    WHERE topic_id = my_topic AND partition_index = my_index AND base_offset = ANY (removed);
    DELETE FROM aborted
    WHERE topic_id = my_topic AND partition_index = my_index AND marker_offset = ANY (removed);
END
$$;
