-- The row that every commit of a broker changes, and what makes it fail. Also run by an upgrade (opening.py).

-- A row for each broker (schema.sql): the number of its last commit. A commit fails if epoch or session are not its own. The
-- epoch is that of the row in brokers and changes with it. A new session means that the broker lost its connection during
-- a commit, which can no longer arrive.
--
-- It is a table of its own because it changes so often: leases are renewed in brokers, and everybody looks there. The index
-- leads to the newest version of a row, as those of other tables do (generation in schema.sql).
CREATE TABLE commits (
    broker_id        integer NOT NULL,
    epoch            bigint NOT NULL CHECK (epoch >= 1),
    session          bigint NOT NULL DEFAULT 0 CHECK (session >= 0),
    sequence         bigint NOT NULL DEFAULT 0 CHECK (sequence >= 0),
    next_producer_id bigint NOT NULL CHECK (next_producer_id >= 0),
    PRIMARY KEY (broker_id, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Writes the number of a commit into the row of its broker. Every commit does this last: it fails if the term is over,
-- or if the broker was replaced. Then nothing of it is written.
CREATE OR REPLACE FUNCTION count_commit(mine claim) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM term WHERE term.term = mine.term) THEN
        RAISE EXCEPTION 'the term % is over', mine.term USING ERRCODE = 'SM002';
    END IF;
    UPDATE commits SET
        sequence = mine.sequence, next_producer_id = coalesce(mine.next_producer_id, commits.next_producer_id)
    WHERE broker_id = mine.broker_id AND epoch = mine.epoch AND session = mine.session
    AND sequence >= (
        SELECT sequence FROM commits WHERE broker_id = mine.broker_id ORDER BY sequence DESC LIMIT 1
    );
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

-- Lets a commit that was sent before fail if it arrives later, and returns the number of the last one. It waits for a commit
-- that is being written.
CREATE FUNCTION begin_session(my_id integer, my_epoch bigint, OUT session bigint, OUT sequence bigint)
RETURNS SETOF record LANGUAGE sql AS $$
    UPDATE commits SET session = session + 1
    WHERE broker_id = my_id AND epoch = my_epoch AND sequence >= last_commit(my_id)
    RETURNING session, sequence;
$$;

-- Lets commits of the last epoch fail, and waits for one that is being written.
CREATE FUNCTION fence_commits(my_id integer, new_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE commits SET epoch = new_epoch WHERE broker_id = my_id AND sequence >= last_commit(my_id);
$$;

-- Takes the place of the last process with this id, unless its lease is not over. is_taken tells whether it worked; it
-- also does if this process has taken the place before, and the answer was lost.
CREATE OR REPLACE FUNCTION take_place(my_id integer, my_instance bytea, lease interval)
RETURNS TABLE (
    is_taken boolean, slot integer, epoch bigint, session bigint, sequence bigint, lease_until timestamptz,
    seconds_left double precision, internal text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Without ON CONFLICT alone: that would use up a slot at each start.
    INSERT INTO brokers (broker_id, instance, epoch, lease_until)
    SELECT my_id, my_instance, 1, clock_timestamp() + lease
    WHERE NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id)
    ON CONFLICT (broker_id) DO NOTHING;
    IF FOUND THEN
        INSERT INTO commits (broker_id, epoch, next_producer_id)
        SELECT broker_id, epoch, slot::bigint << 40 FROM brokers WHERE broker_id = my_id;
    ELSE
        UPDATE brokers SET
            instance = my_instance, epoch = brokers.epoch + 1, lease_until = clock_timestamp() + lease
        WHERE broker_id = my_id AND (instance = my_instance OR lease_until <= clock_timestamp());
        IF FOUND THEN
            PERFORM fence_commits(broker_id, epoch) FROM brokers WHERE broker_id = my_id;
            DELETE FROM notices WHERE to_broker = my_id;
        END IF;
    END IF;
    RETURN QUERY SELECT
        instance = my_instance, slot, brokers.epoch, session, sequence, lease_until,
        extract(epoch FROM lease_until - clock_timestamp())::double precision, internal
    FROM brokers JOIN commits USING (broker_id)
    WHERE broker_id = my_id AND sequence >= last_commit(my_id);
END
$$;

-- Locks the rows of brokers, everybody in the same order: no commit of theirs is under way then. Fails if the broker
-- was replaced.
CREATE OR REPLACE FUNCTION lock_brokers(my_id integer, my_epoch bigint, others integer[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM brokers WHERE broker_id = my_id OR broker_id = ANY (others) ORDER BY broker_id FOR UPDATE;
    PERFORM FROM (
        SELECT broker_id FROM brokers WHERE broker_id = my_id OR broker_id = ANY (others) ORDER BY broker_id
    ) AS each CROSS JOIN LATERAL (
        SELECT FROM commits WHERE commits.broker_id = each.broker_id ORDER BY sequence DESC LIMIT 1 FOR UPDATE
    ) AS locked;
    PERFORM check_place(my_id, my_epoch);
    LOCK TABLE shards IN SHARE ROW EXCLUSIVE MODE;
END
$$;

-- Replaces a broker whose lease is over. Its commits fail from now on; this waits for one that is being written. Shards
-- that nobody was named for, or nobody who is a member, have no owner afterwards. Returns false if the broker lives.
CREATE OR REPLACE FUNCTION take_over(
    my_id integer, my_epoch bigint, dead_id integer, dead_epoch bigint, given_shards integer[], new_owners integer[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, dead_id || new_owners);
    UPDATE brokers SET epoch = epoch + 1, is_member = false
    WHERE broker_id = dead_id AND epoch = dead_epoch AND lease_until <= clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM fence_commits(dead_id, dead_epoch + 1);
    DELETE FROM notices WHERE to_broker = dead_id;
    PERFORM give_shards(dead_id, given_shards, new_owners);
    UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = dead_id;
    RETURN true;
END
$$;
