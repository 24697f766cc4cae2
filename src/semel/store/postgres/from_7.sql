-- Upgrades version 7, whose leases and deadlines follow the clock of the database if it is set. The tables did
-- not refer to one another, and terms had no ids. membership.sql, terms.sql and references.sql follow.

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

UPDATE meta SET value = '8' WHERE name = 'schema_version';
