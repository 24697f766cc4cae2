-- Upgrades the tables of version 1. Other missing tables are created by schema.sql.

ALTER TABLE cluster
ADD COLUMN transaction_version INTEGER NOT NULL DEFAULT 2 CHECK (transaction_version >= 0);

ALTER TABLE cluster
ADD COLUMN features_epoch INTEGER NOT NULL DEFAULT 1 CHECK (features_epoch >= 0);

ALTER TABLE partitions
ADD COLUMN last_aborted_offset INTEGER NOT NULL DEFAULT -1 CHECK (last_aborted_offset >= -1);

ALTER TABLE producers
ADD COLUMN staged BLOB NOT NULL DEFAULT x'';

-- As it was in version 2: a later version adds a column.
CREATE TABLE transactions (
    transactional_id     TEXT NOT NULL PRIMARY KEY,
    producer_id          INTEGER NOT NULL CHECK (producer_id >= 0),
    epoch                INTEGER NOT NULL CHECK (epoch BETWEEN -1 AND 32767),
    timeout_ms           INTEGER NOT NULL,
    state                TEXT NOT NULL CHECK (state IN ('Empty', 'Ongoing', 'CompleteCommit', 'CompleteAbort')),
    partitions           TEXT NOT NULL,
    groups               TEXT NOT NULL,
    started_ms           INTEGER NOT NULL,
    updated_ms           INTEGER NOT NULL,
    deadline_ms          INTEGER NOT NULL,
    previous_producer_id INTEGER NOT NULL CHECK (previous_producer_id >= -1),
    last_epoch           INTEGER NOT NULL CHECK (last_epoch BETWEEN -1 AND 32767),
    version              INTEGER NOT NULL,
    term                 INTEGER NOT NULL,
    is_two_phase         INTEGER NOT NULL CHECK (is_two_phase IN (0, 1)),
    prepared_epoch       INTEGER NOT NULL CHECK (prepared_epoch BETWEEN -1 AND 32767)
) STRICT, WITHOUT ROWID;
