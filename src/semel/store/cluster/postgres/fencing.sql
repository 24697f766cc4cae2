-- The row that every commit of a broker changes, and what makes it fail.

-- A row for each broker (schema.sql): the number of its last commit. A commit fails if epoch or session are not its own. The
-- epoch is that of the row in brokers and changes with it. A new session means that the broker lost its connection during
-- a commit, which can no longer arrive.
--
-- It is a separate table because it changes so often: leases are renewed in brokers, which all brokers read. The index
-- leads to the newest version of a row, as those of other tables do (generation in schema.sql).
CREATE TABLE commits (
    broker_id        integer NOT NULL,
    epoch            bigint NOT NULL CHECK (epoch >= 1),
    session          bigint NOT NULL DEFAULT 0 CHECK (session >= 0),
    sequence         bigint NOT NULL DEFAULT 0 CHECK (sequence >= 0),
    next_producer_id bigint NOT NULL CHECK (next_producer_id >= 0),
    PRIMARY KEY (broker_id, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Writes the number of a commit into the row of its broker. Every commit does this last. It fails if the term is over, if
-- the broker was replaced, or if the last commit is not the one before this (an older copy of the server has another).
-- Then nothing of the commit is written.
CREATE FUNCTION count_commit(mine claim) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM term WHERE term.term = mine.term) THEN
        RAISE EXCEPTION 'the term % is over', mine.term USING ERRCODE = 'SM002';
    END IF;
    UPDATE commits SET
        sequence = mine.sequence, next_producer_id = coalesce(mine.next_producer_id, commits.next_producer_id)
    WHERE broker_id = mine.broker_id AND epoch = mine.epoch AND session = mine.session
    AND sequence = mine.sequence - 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'broker % has no epoch %: another process took its place', mine.broker_id, mine.epoch
            USING ERRCODE = 'SM001';
    END IF;
    IF NOT mine.is_synced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- The number of the last commit of a broker.
CREATE FUNCTION last_commit(my_id integer) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT sequence FROM commits WHERE broker_id = my_id ORDER BY sequence DESC LIMIT 1;
$$;

-- Begins a session: a commit that was sent before fails if it arrives later. Waits for a commit that is being written.
-- Returns the number of the last commit.
CREATE FUNCTION begin_session(my_id integer, my_epoch bigint, OUT session bigint, OUT sequence bigint)
RETURNS SETOF record LANGUAGE sql AS $$
    UPDATE commits SET session = session + 1
    WHERE broker_id = my_id AND epoch = my_epoch AND sequence >= last_commit(my_id)
    RETURNING session, sequence;
$$;

-- Begins an epoch: commits of the last one fail. Waits for one that is being written.
CREATE FUNCTION fence_commits(my_id integer, new_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE commits SET epoch = new_epoch WHERE broker_id = my_id AND sequence >= last_commit(my_id);
$$;
