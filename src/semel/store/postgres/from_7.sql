-- Upgrades version 7, whose terms have no ids. terms.sql follows.

UPDATE meta SET value = '8' WHERE name = 'schema_version';
