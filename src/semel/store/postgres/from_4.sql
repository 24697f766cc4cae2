-- Upgrades the types of version 4, which has no share-partitions. shares.sql and locking.sql follow.

CREATE TYPE share_version AS (topic_id bytea, partition_index integer, group_id text, row_version bigint);
ALTER TYPE expectations ADD ATTRIBUTE shares share_version[];

UPDATE meta SET value = '5' WHERE name = 'schema_version';
