-- Who is in the cluster, and who owns which shard. Leases are measured by the clock of the database alone.

CREATE TYPE member AS (
    broker_id integer, epoch bigint, endpoints text, internal text, rack text, is_live boolean, is_leaving boolean
);

-- Fails if the broker was replaced.
CREATE FUNCTION check_place(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM brokers WHERE broker_id = my_id AND epoch = my_epoch) THEN
        RAISE EXCEPTION 'broker % has no epoch %: another process took its place', my_id, my_epoch
            USING ERRCODE = 'SM001';
    END IF;
END
$$;

-- Announces the addresses of a broker, and makes it a member.
CREATE FUNCTION join_cluster(
    my_id integer, my_epoch bigint, lease interval, my_endpoints text, my_internal text, my_rack text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET
        lease_until = clock_timestamp() + lease, is_member = true, is_leaving = false,
        endpoints = my_endpoints, internal = my_internal, rack = my_rack
    WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;

-- Prolongs the lease, and returns the cluster. Notices are read after that: who finds the lease over, waits for a
-- renewal under way (is_noticed).
CREATE FUNCTION renew_lease(
    my_id integer, my_epoch bigint, lease interval,
    OUT members member[], OUT owners integer[], OUT epochs bigint[], OUT notice_ids bigint[], OUT bodies bytea[],
    OUT time_of_day_ms bigint
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET lease_until = clock_timestamp() + lease WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
    SELECT array_agg(
        (broker_id, epoch, endpoints, internal, rack, lease_until > clock_timestamp(), is_leaving)::member
        ORDER BY broker_id
    ) INTO members FROM brokers WHERE is_member;
    SELECT array_agg(owner ORDER BY shard), array_agg(epoch ORDER BY shard) INTO owners, epochs FROM shards;
    SELECT array_agg(notice_id ORDER BY notice_id), array_agg(body ORDER BY notice_id) INTO notice_ids, bodies
    FROM notices WHERE to_broker = my_id AND to_epoch = my_epoch;
    time_of_day_ms := extract(epoch FROM clock_timestamp()) * 1000;
END
$$;

-- Ends the lease of a process that stops.
CREATE FUNCTION end_lease(my_id integer, my_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE brokers SET lease_until = least(lease_until, clock_timestamp())
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
-- owner has changed since the broker looked, as it tells by their epochs, stay where they are.
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

-- Tells the others to give this broker no more shards.
CREATE FUNCTION announce_leaving(my_id integer, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE brokers SET is_leaving = true WHERE broker_id = my_id AND epoch = my_epoch;
    PERFORM check_place(my_id, my_epoch);
END
$$;

-- Leaves a notice for a broker, and returns its number; 0 if the broker was replaced, so that nobody needs the notice.
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

-- Whether a broker lives: its lease is not over, and it was not replaced.
CREATE FUNCTION is_live(peer_id integer, peer_epoch bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM brokers
        WHERE broker_id = peer_id AND epoch = peer_epoch AND lease_until > clock_timestamp()
    );
$$;

-- Whether a broker has seen a notice, or will before it serves anybody again.
CREATE FUNCTION is_noticed(my_id integer, my_epoch bigint, peer_id integer, peer_epoch bigint, number bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(my_id, my_epoch);
    IF NOT EXISTS (SELECT FROM notices WHERE notice_id = number) THEN
        RETURN true;
    ELSIF is_live(peer_id, peer_epoch) THEN
        RETURN false;
    END IF;
    -- A renewal may be under way that has not seen the notice: wait for it, and look again.
    PERFORM FROM brokers WHERE broker_id = peer_id FOR SHARE;
    RETURN NOT is_live(peer_id, peer_epoch);
END
$$;

-- Deletes own notices, which were carried out.
CREATE FUNCTION drop_notices(my_id integer, my_epoch bigint, numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_place(my_id, my_epoch);
    DELETE FROM notices WHERE notice_id = ANY (numbers) AND to_broker = my_id;
END
$$;
