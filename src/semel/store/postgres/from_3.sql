-- Upgrades a function of version 3: a broker can hand a shard over to itself, so that an earlier hand-over that is late
-- finds another epoch.

CREATE OR REPLACE FUNCTION hand_over(
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

UPDATE meta SET value = '4' WHERE name = 'schema_version';
