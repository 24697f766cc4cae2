-- Upgrades version 6, which does not know the largest number of an object. numbering.sql and replacing.sql follow.

UPDATE meta SET value = '7' WHERE name = 'schema_version';
