-- The members of the cluster, and the owners of shards.
--
-- Brokers decide by their own clocks whether the lease of another broker is over (semel.store.cluster.membership), because the
-- clock of the database may be set. over_renewals is the number of the renewal whose lease is over.

CREATE TYPE member AS (
    broker_id integer, epoch bigint, endpoints text, internal text, rack text, renewals bigint,
    lease_seconds double precision, is_leaving boolean
);

-- Takes the place of the last process with this id, if its lease is over. is_taken: whether this process has the place. It
-- is also true if this process has taken the place before, and the answer was lost.
CREATE FUNCTION take_place(my_id integer, my_instance bytea, my_lease interval, over_renewals bigint)
RETURNS TABLE (
    is_taken boolean, slot integer, epoch bigint, session bigint, sequence bigint, renewals bigint,
    lease_seconds double precision, seconds_left double precision, internal text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Without ON CONFLICT alone: that would use up a slot at each start.
    INSERT INTO brokers (broker_id, instance, epoch, lease, lease_until)
    SELECT my_id, my_instance, 1, my_lease, clock_timestamp() + my_lease
    WHERE NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id)
    ON CONFLICT (broker_id) DO NOTHING;
    IF FOUND THEN
        -- There is none, unless the row in brokers was lost.
        DELETE FROM commits WHERE broker_id = my_id;
        INSERT INTO commits (broker_id, epoch, next_producer_id)
        SELECT broker_id, brokers.epoch, slot::bigint << 40 FROM brokers WHERE broker_id = my_id;
    ELSE
        UPDATE brokers SET
            instance = my_instance, epoch = brokers.epoch + 1, renewals = brokers.renewals + 1, lease = my_lease,
            lease_until = clock_timestamp() + my_lease
        WHERE broker_id = my_id AND (
            instance = my_instance OR lease = '0' OR lease_until <= clock_timestamp() OR renewals = over_renewals
        );
        IF FOUND THEN
            PERFORM fence_commits(broker_id, brokers.epoch) FROM brokers WHERE broker_id = my_id;
            DELETE FROM notices WHERE to_broker = my_id;
        END IF;
    END IF;
    RETURN QUERY SELECT
        instance = my_instance, slot, brokers.epoch, session, sequence, renewals,
        extract(epoch FROM lease)::double precision,
        extract(epoch FROM lease_until - clock_timestamp())::double precision, internal
    FROM brokers JOIN commits USING (broker_id)
    WHERE broker_id = my_id AND sequence >= last_commit(my_id);
END
$$;

-- Fails if the broker was replaced.
CREATE FUNCTION check_place(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id AND epoch = my_epoch) THEN
        RAISE EXCEPTION 'broker % has no epoch %: another process took its place', my_id, my_epoch
            USING ERRCODE = 'SM001';
    END IF;
END
$$;

-- Locks the rows of brokers, always in the same order: no commit of theirs is under way then. Fails if the broker was
-- replaced.
CREATE FUNCTION lock_brokers(my_id integer, my_epoch bigint, others integer[]) RETURNS void LANGUAGE plpgsql AS $$
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

-- Announces the addresses of a broker, and makes it a member.
CREATE FUNCTION join_cluster(
    my_id integer, my_epoch bigint, my_lease interval, my_endpoints text, my_internal text, my_rack text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET
        renewals = renewals + 1, lease = my_lease, lease_until = clock_timestamp() + my_lease,
        is_member = true, is_leaving = false,
        endpoints = my_endpoints, internal = my_internal, rack = my_rack
    WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;

-- Renews the lease, and returns the cluster. Notices are read after the renewal: a broker that finds the lease over waits
-- for a renewal under way (is_noticed).
CREATE FUNCTION renew_lease(
    my_id integer, my_epoch bigint, my_lease interval, my_now_ms bigint,
    OUT members member[], OUT owners integer[], OUT epochs bigint[], OUT notice_ids bigint[], OUT bodies bytea[],
    OUT time_of_day_ms bigint, OUT shared_now_ms bigint
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET
        renewals = renewals + 1, lease = my_lease, lease_until = clock_timestamp() + my_lease,
        now_ms = greatest(now_ms, my_now_ms)
    WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
    SELECT array_agg(
        (broker_id, epoch, endpoints, internal, rack, renewals, extract(epoch FROM lease), is_leaving)::member
        ORDER BY broker_id
    ) INTO members FROM brokers WHERE is_member;
    SELECT array_agg(owner ORDER BY shard), array_agg(epoch ORDER BY shard) INTO owners, epochs FROM shards;
    SELECT array_agg(notice_id ORDER BY notice_id), array_agg(body ORDER BY notice_id) INTO notice_ids, bodies
    FROM notices WHERE to_broker = my_id AND to_epoch = my_epoch;
    time_of_day_ms := extract(epoch FROM clock_timestamp()) * 1000;
    SELECT coalesce(
        max(now_ms) FILTER (
            WHERE broker_id <> my_id AND now_ms > 0 AND lease > '0' AND lease_until > clock_timestamp()
        ),
        greatest(max(now_ms), time_of_day_ms)
    ) INTO shared_now_ms FROM brokers;
END
$$;

-- Ends the lease of a process that stops.
CREATE FUNCTION end_lease(my_id integer, my_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE brokers SET lease = '0', lease_until = least(lease_until, clock_timestamp())
    WHERE broker_id = my_id AND epoch = my_epoch;
$$;

-- Gives shards of a broker to members that do not leave.
CREATE FUNCTION give_shards(giver integer, given_shards integer[], new_owners integer[])
RETURNS void LANGUAGE sql AS $$
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners) AS given (shard, owner)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.owner = giver AND given.owner <> giver;
$$;

-- Gives own shards, and shards without an owner, to members that do not leave, perhaps to the broker itself. Shards whose
-- owner has changed since the broker looked, and so their epochs, stay where they are.
CREATE FUNCTION hand_over(
    my_id integer, my_epoch bigint, given_shards integer[], new_owners integer[], seen_epochs bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, new_owners);
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners, seen_epochs) AS given (shard, owner, epoch)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.epoch = given.epoch
    AND (shards.owner = my_id OR shards.owner IS NULL);
END
$$;

-- Replaces a broker whose lease is over, unless it has renewed it since. Its commits fail from now on; this waits for one
-- that is being written. Shards for which no member was named have no owner afterwards. Returns false if the broker lives.
CREATE FUNCTION take_over(
    my_id integer, my_epoch bigint, dead_id integer, dead_epoch bigint, over_renewals bigint,
    given_shards integer[], new_owners integer[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, dead_id || new_owners);
    UPDATE brokers SET epoch = epoch + 1, is_member = false, lease = '0'
    WHERE broker_id = dead_id AND epoch = dead_epoch AND (lease = '0' OR renewals = over_renewals);
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

-- Gives all own shards away, and ends the lease.
CREATE FUNCTION leave_cluster(my_id integer, my_epoch bigint, given_shards integer[], new_owners integer[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, new_owners);
    UPDATE brokers SET is_member = false WHERE broker_id = my_id;
    PERFORM give_shards(my_id, given_shards, new_owners);
    UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = my_id;
    DELETE FROM notices WHERE to_broker = my_id;
    PERFORM end_lease(my_id, my_epoch);
END
$$;

-- Asks other brokers to give this one no more shards.
CREATE FUNCTION announce_leaving(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET is_leaving = true WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;

-- Leaves a notice for a broker, and returns its number; 0 if the broker was replaced, so that the notice is not needed.
CREATE FUNCTION leave_notice(my_id integer, my_epoch bigint, peer_id integer, peer_epoch bigint, new_body bytea)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    PERFORM check_place(my_id, my_epoch);
    INSERT INTO notices (to_broker, to_epoch, body)
    SELECT peer_id, peer_epoch, new_body FROM brokers WHERE broker_id = peer_id AND epoch = peer_epoch
    RETURNING notice_id INTO number;
    RETURN coalesce(number, 0);
END
$$;

-- Whether a broker has seen a notice, or will see it before it serves clients again; and its last renewal.
CREATE FUNCTION is_noticed(
    my_id integer, my_epoch bigint, peer_id integer, peer_epoch bigint, over_renewals bigint, number bigint,
    OUT is_noticed boolean, OUT peer_renewals bigint, OUT lease_seconds double precision
) LANGUAGE plpgsql AS $$
DECLARE
    peer brokers;
BEGIN
    PERFORM check_place(my_id, my_epoch);
    SELECT * INTO peer FROM brokers WHERE broker_id = peer_id;
    IF peer.epoch = peer_epoch AND (peer.lease = '0' OR peer.renewals = over_renewals) THEN
        -- A renewal may be under way that has not seen the notice: wait for it, and look again.
        SELECT * INTO peer FROM brokers WHERE broker_id = peer_id FOR SHARE;
    END IF;
    is_noticed := peer.epoch IS DISTINCT FROM peer_epoch OR peer.lease = '0'
        OR coalesce(peer.renewals = over_renewals, false)
        OR NOT EXISTS (SELECT FROM notices WHERE notice_id = number);
    peer_renewals := peer.renewals;
    lease_seconds := extract(epoch FROM peer.lease);
END
$$;

-- Deletes notices to this broker, which were carried out.
CREATE FUNCTION drop_notices(my_id integer, my_epoch bigint, numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(my_id, my_epoch);
    DELETE FROM notices WHERE notice_id = ANY (numbers) AND to_broker = my_id;
END
$$;
