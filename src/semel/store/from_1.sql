-- Upgrades the tables of version 1. Missing tables are created by schema.sql.

ALTER TABLE cluster
ADD COLUMN transaction_version INTEGER NOT NULL DEFAULT 2 CHECK (transaction_version >= 0);

ALTER TABLE cluster
ADD COLUMN features_epoch INTEGER NOT NULL DEFAULT 1 CHECK (features_epoch >= 0);

ALTER TABLE partitions
ADD COLUMN last_aborted_offset INTEGER NOT NULL DEFAULT -1 CHECK (last_aborted_offset >= -1);

ALTER TABLE producers
ADD COLUMN staged BLOB NOT NULL DEFAULT x'';
