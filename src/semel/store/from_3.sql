-- What a ledger of version 3 lacks in the tables it has.

ALTER TABLE cluster
ADD COLUMN checkpoints INTEGER NOT NULL DEFAULT 0 CHECK (checkpoints >= 0);

ALTER TABLE chunks
ADD COLUMN end_position INTEGER NOT NULL DEFAULT 0 CHECK (end_position >= 0);

ALTER TABLE chunks
ADD COLUMN synchronised_end INTEGER NOT NULL DEFAULT 0 CHECK (synchronised_end >= 0);
