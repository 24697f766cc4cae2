-- Upgrades the functions of version 2: shards are handed over only if their owner has not changed meanwhile.

-- Gives shards of a broker to members that do not leave.
CREATE OR REPLACE FUNCTION give_shards(giver integer, given_shards integer[], new_owners integer[])
RETURNS void LANGUAGE sql AS $$
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners) AS given (shard, owner)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.owner = giver AND given.owner <> giver;
$$;

DROP FUNCTION hand_over(integer, bigint, integer[], integer[]);

-- Gives own shards, and shards without an owner, to members that do not leave. Shards whose owner has changed since the
-- broker looked, as it tells by their epochs, stay where they are.
CREATE FUNCTION hand_over(
    my_id integer, my_epoch bigint, given_shards integer[], new_owners integer[], seen_epochs bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_brokers(my_id, my_epoch, new_owners);
    UPDATE shards SET owner = given.owner, epoch = shards.epoch + 1
    FROM unnest(given_shards, new_owners, seen_epochs) AS given (shard, owner, epoch)
    JOIN brokers ON broker_id = given.owner AND is_member AND NOT is_leaving
    WHERE shards.shard = given.shard AND shards.epoch = given.epoch
    AND (shards.owner = my_id OR shards.owner IS NULL) AND shards.owner IS DISTINCT FROM given.owner;
END
$$;

UPDATE meta SET value = '3' WHERE name = 'schema_version';
