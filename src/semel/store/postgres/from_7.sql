-- Upgrades the tables of version 7: the newest versions of rows that change all the time are found by their generation
-- (schema.sql). fencing.sql came before, locking.sql and writing.sql follow.

INSERT INTO commits SELECT broker_id, epoch, session, sequence, next_producer_id FROM brokers;
ALTER TABLE brokers DROP COLUMN session, DROP COLUMN sequence, DROP COLUMN next_producer_id;

ALTER TABLE partitions DROP CONSTRAINT partitions_pkey;
ALTER TABLE partitions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX partitions_newest ON partitions (topic_id, partition_index, generation);

ALTER TABLE producers DROP CONSTRAINT producers_pkey;
ALTER TABLE producers ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX producers_newest ON producers (topic_id, partition_index, producer_id, generation);

ALTER TABLE offsets DROP CONSTRAINT offsets_pkey;
ALTER TABLE offsets ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX offsets_newest ON offsets (group_id, topic, partition_index, generation);

ALTER TABLE pending_versions DROP CONSTRAINT pending_versions_pkey;
ALTER TABLE pending_versions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX pending_versions_newest ON pending_versions (group_id, generation);

ALTER TABLE pending_offsets DROP CONSTRAINT pending_offsets_pkey;
ALTER TABLE pending_offsets ADD COLUMN row_version bigint CHECK (row_version >= 1);
UPDATE pending_offsets SET row_version = pending_versions.row_version
FROM pending_versions WHERE pending_versions.group_id = pending_offsets.group_id;
ALTER TABLE pending_offsets ADD PRIMARY KEY (group_id, row_version, position);

ALTER TABLE transactions DROP CONSTRAINT transactions_pkey;
ALTER TABLE transactions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX transactions_newest ON transactions (transactional_id, generation);

ALTER TABLE groups DROP CONSTRAINT groups_pkey;
ALTER TABLE groups ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX groups_newest ON groups (group_id, generation);

-- shares.sql may have made this table on the way from version 4.
ALTER TABLE shares DROP CONSTRAINT IF EXISTS shares_pkey;
ALTER TABLE shares ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE INDEX IF NOT EXISTS shares_newest ON shares (topic_id, partition_index, group_id, generation);

CREATE INDEX inline_generation_newest ON inline_generation (since);

UPDATE meta SET value = '8' WHERE name = 'schema_version';
