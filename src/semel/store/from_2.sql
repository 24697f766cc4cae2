-- Upgrades the tables of version 2.

ALTER TABLE partitions
ADD COLUMN cleaned_offset INTEGER NOT NULL DEFAULT 0 CHECK (cleaned_offset >= 0);

ALTER TABLE partitions
ADD COLUMN compactions INTEGER NOT NULL DEFAULT 0 CHECK (compactions >= 0);
