"""The demonstration: an order stream, an exactly-once pipeline on Spark, and SIGKILL for every part.

`make demo` runs it with one broker, `make demo-cluster` with three over PostgreSQL and S3 (`cluster`). Where
to read on: `__main__` has the sequence of events, and `shop` the pipeline, which is the file that `semel
pipeline run` gets; `orders` makes the input and knows the expected output, `processes` starts and kills,
`watching` notices when a query makes no progress, `checking` compares every record.
"""
