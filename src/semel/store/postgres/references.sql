-- References between tables that are rarely written: a row that others need cannot be deleted by hand. Also run by an
-- upgrade (opening.py). Commits pay nothing for them: a chunk of a small commit is in no object, and the key of a
-- partition never changes. batches have none, because every commit writes them; 'semel cluster check' compares them.
--
-- Not validated: a ledger in which such a row is lost already can be upgraded, and the check says which.

ALTER TABLE chunks DROP CONSTRAINT IF EXISTS chunks_in_object;
ALTER TABLE chunks ADD CONSTRAINT chunks_in_object FOREIGN KEY (object_id) REFERENCES objects NOT VALID;
ALTER TABLE partitions DROP CONSTRAINT IF EXISTS partitions_of_topic;
ALTER TABLE partitions ADD CONSTRAINT partitions_of_topic
    FOREIGN KEY (topic_id) REFERENCES topics (topic_id) NOT VALID;
