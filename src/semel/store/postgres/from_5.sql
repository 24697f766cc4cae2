-- Upgrades the tables of version 5, whose transactions have no acknowledgements of share groups. writing.sql follows.

ALTER TABLE transactions ADD COLUMN shares text NOT NULL DEFAULT '[]';

UPDATE meta SET value = '6' WHERE name = 'schema_version';
