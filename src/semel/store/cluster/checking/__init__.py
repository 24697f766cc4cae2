"""Check the ledger of a cluster, while brokers run: ``check_cluster`` in ``run``.

The check finds rows that are lost or altered, because other rows refer to them or count them. Its statements
are short, and each sees one snapshot, so it never sees half of a broker's change. A problem that takes more
than one statement to detect is checked again before it becomes a finding. Two statements may be long, to
confirm a loss: the size of a large partition, and the bytes of chunks that look wrong.

``rows`` compares tables page by page, ``walk`` checks the batches of each partition, and ``places`` compares
the objects with the object store.
"""
