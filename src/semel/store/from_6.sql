-- Upgrades the tables of version 6, whose transactions have no acknowledgements of share groups.

ALTER TABLE transactions
ADD COLUMN shares TEXT NOT NULL DEFAULT '[]';
