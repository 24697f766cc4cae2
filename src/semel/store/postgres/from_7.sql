-- Upgrades version 7, whose tables do not refer to one another. references.sql follows.

UPDATE meta SET value = '8' WHERE name = 'schema_version';
