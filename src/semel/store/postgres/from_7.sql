-- Upgrades version 7, whose leases and deadlines follow the clock of the database if it is set. Newest versions of rows
-- that change all the time were not found by a generation (schema.sql), tables did not refer to one another, and terms had
-- no ids. fencing.sql came before; membership.sql, locking.sql, writing.sql, terms.sql and references.sql follow.

ALTER TABLE brokers ADD COLUMN lease interval NOT NULL DEFAULT '0';
ALTER TABLE brokers ADD COLUMN renewals bigint NOT NULL DEFAULT 0 CHECK (renewals >= 0);
ALTER TABLE brokers ADD COLUMN now_ms bigint NOT NULL DEFAULT 0 CHECK (now_ms >= 0);

DROP FUNCTION take_place(integer, bytea, interval);
DROP FUNCTION join_cluster(integer, bigint, interval, text, text, text);
DROP FUNCTION renew_lease(integer, bigint, interval);
DROP FUNCTION take_over(integer, bigint, integer, bigint, integer[], integer[]);
DROP FUNCTION is_noticed(integer, bigint, integer, bigint, bigint);
DROP FUNCTION is_live(integer, bigint);
DROP TYPE member;

INSERT INTO commits SELECT broker_id, epoch, session, sequence, next_producer_id FROM brokers;
ALTER TABLE brokers DROP COLUMN session, DROP COLUMN sequence, DROP COLUMN next_producer_id;

ALTER TABLE partitions DROP CONSTRAINT partitions_pkey;
ALTER TABLE partitions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX partitions_newest ON partitions (topic_id, partition_index, generation);

ALTER TABLE producers DROP CONSTRAINT producers_pkey;
ALTER TABLE producers ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX producers_newest ON producers (topic_id, partition_index, producer_id, generation);

ALTER TABLE offsets DROP CONSTRAINT offsets_pkey;
ALTER TABLE offsets ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX offsets_newest ON offsets (group_id, topic, partition_index, generation);

ALTER TABLE pending_versions DROP CONSTRAINT pending_versions_pkey;
ALTER TABLE pending_versions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX pending_versions_newest ON pending_versions (group_id, generation);

ALTER TABLE pending_offsets DROP CONSTRAINT pending_offsets_pkey;
-- A group whose row of pending_versions is lost gets a version that it did not have ('semel cluster check' tells).
ALTER TABLE pending_offsets ADD COLUMN row_version bigint NOT NULL DEFAULT 1 CHECK (row_version >= 1);
UPDATE pending_offsets SET row_version = pending_versions.row_version
FROM pending_versions WHERE pending_versions.group_id = pending_offsets.group_id;
ALTER TABLE pending_offsets ALTER COLUMN row_version DROP DEFAULT;
ALTER TABLE pending_offsets ADD PRIMARY KEY (group_id, row_version, position);

ALTER TABLE transactions DROP CONSTRAINT transactions_pkey;
ALTER TABLE transactions ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX transactions_newest ON transactions (transactional_id, generation);

ALTER TABLE groups DROP CONSTRAINT groups_pkey;
ALTER TABLE groups ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX groups_newest ON groups (group_id, generation);

-- shares.sql may have made this table on the way from version 4.
ALTER TABLE shares DROP CONSTRAINT IF EXISTS shares_pkey;
ALTER TABLE shares ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
CREATE UNIQUE INDEX IF NOT EXISTS shares_newest ON shares (topic_id, partition_index, group_id, generation);

CREATE INDEX inline_generation_newest ON inline_generation (since);

UPDATE meta SET value = '8' WHERE name = 'schema_version';
