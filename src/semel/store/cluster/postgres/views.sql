-- Views for operators. Semel itself does not use them. They are the same as those of the embedded ledger.

-- Open transactions with their start and timeout: one row for each partition, or one row without a partition.
-- first_offset is where the transaction began to write; none if it did not write there, or if its batches are staged,
-- as in partitions with journal visibility.
CREATE VIEW open_transactions AS
    SELECT
        transactions.transactional_id, transactions.producer_id, transactions.epoch, transactions.state,
        transactions.started_ms, nullif(transactions.deadline_ms, -1) AS deadline_ms, transactions.is_two_phase,
        topics.name AS topic, partitions.partition_index,
        nullif(producers.transaction_first_offset, -1) AS first_offset
    FROM transactions
    LEFT JOIN LATERAL json_array_elements(transactions.partitions::json) AS joined ON true
    LEFT JOIN topics ON topics.topic_id = decode(joined ->> 0, 'hex')
    LEFT JOIN partitions
        ON partitions.topic_id = topics.topic_id AND partitions.partition_index = (joined ->> 1)::integer
    LEFT JOIN producers
        ON producers.topic_id = partitions.topic_id AND producers.partition_index = partitions.partition_index
        AND producers.producer_id = transactions.producer_id
    WHERE transactions.state = 'Ongoing';

-- Why a read_committed consumer makes no progress: the partitions with an open transaction, and the transaction that
-- holds back readers. transactional_id and started_ms are none if no transactional id has that producer: its
-- transaction hangs.
CREATE VIEW blocked_partitions AS
    SELECT
        topics.name AS topic, partitions.partition_index,
        greatest(oldest.transaction_first_offset, partitions.log_start_offset) AS last_stable_offset,
        partitions.high_watermark, oldest.producer_id, transactions.transactional_id, transactions.started_ms
    FROM partitions
    JOIN topics USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT producer_id, transaction_first_offset FROM producers
        WHERE producers.topic_id = partitions.topic_id
        AND producers.partition_index = partitions.partition_index AND transaction_first_offset >= 0
        ORDER BY transaction_first_offset LIMIT 1
    ) AS oldest
    LEFT JOIN transactions ON transactions.state = 'Ongoing' AND transactions.producer_id = oldest.producer_id
    WHERE length(partitions.open_transactions) > 0;

-- Committed offsets of groups, and their lag behind the end of the log. The end is none if the topic does not have the
-- partition.
CREATE VIEW committed_offsets AS
    SELECT
        offsets.group_id, offsets.topic, offsets.partition_index, offsets.committed_offset, offsets.metadata,
        offsets.committed_ms, partitions.high_watermark,
        partitions.high_watermark - offsets.committed_offset AS behind
    FROM offsets
    LEFT JOIN topics ON topics.name = offsets.topic
    LEFT JOIN partitions
        ON partitions.topic_id = topics.topic_id AND partitions.partition_index = offsets.partition_index;

-- Offsets that wait for the end of a transaction, and that transaction. While a partition is listed, a consumer that
-- requires stable offsets waits. is_superseded: a later commit has overtaken this one, which will not count.
CREATE VIEW pending AS
    SELECT
        pending_offsets.group_id, pending_offsets.topic, pending_offsets.partition_index,
        pending_offsets.committed_offset, pending_offsets.committed_ms, pending_offsets.is_superseded,
        pending_offsets.producer_id, transactions.transactional_id
    FROM pending_offsets
    LEFT JOIN transactions
        ON transactions.state = 'Ongoing' AND transactions.producer_id = pending_offsets.producer_id;
