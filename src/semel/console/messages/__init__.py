"""The records of a topic: read, marked, searched, shown, exported, written and sent again.

Nothing here knows HTTP; `pages/messages.py` and `pages/produce.py` do. Records are hostile input: whatever is
in them costs bounded memory and time. Read on in: `limits`; `reading` for batches and ranges of offsets,
`marks` for what became of a transaction; `query` and `filters` for what is searched, `scanning`
and `tailing` for the two ways to search it; `rows` and `decoding` for what is shown; `registry`, `avro` and
`protobuf` for values with a schema; `exporting`, `producing`.
"""
