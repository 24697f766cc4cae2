-- References between tables that are rarely written: a row that others need cannot be deleted by hand. Commits pay nothing
-- for them: a chunk of a small commit is in no object, and the key of a partition never changes. batches have none, because
-- every commit writes them; 'semel cluster check' compares them.

ALTER TABLE chunks ADD CONSTRAINT chunks_in_object FOREIGN KEY (object_id) REFERENCES objects;
ALTER TABLE partitions ADD CONSTRAINT partitions_of_topic FOREIGN KEY (topic_id) REFERENCES topics (topic_id);
