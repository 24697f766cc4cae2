-- Upgrades the tables of version 3.

ALTER TABLE cluster
ADD COLUMN sqlite_checkpoints INTEGER NOT NULL DEFAULT 0 CHECK (sqlite_checkpoints >= 0);

ALTER TABLE chunks
ADD COLUMN end_position INTEGER NOT NULL DEFAULT 0 CHECK (end_position >= 0);

ALTER TABLE chunks
ADD COLUMN checkpointed_end INTEGER NOT NULL DEFAULT 0 CHECK (checkpointed_end >= 0);

UPDATE meta SET name = 'checkpointed' WHERE name = 'synchronised';
