"""The demonstration: an order stream, an exactly-once pipeline on Spark, and SIGKILL for everything in it.

`make demo` runs it with one broker, `make demo-cluster` with three over PostgreSQL and S3 (`cluster`). Where
to read on: `__main__` for what happens in which order, `shop` for the pipeline, which is the file that `semel
pipeline run` is given; `orders` makes the input and knows what must come out, `processes` starts and kills,
`watching` notices when a query gets no further, `checking` compares every record.
"""
