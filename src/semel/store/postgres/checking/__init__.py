"""Check the ledger of a cluster, while brokers run: ``check_cluster`` in ``run``.

The check finds rows that are lost or altered, because others refer to them or count with them. Its statements
are short, and each sees one moment, so a change of a broker is never half seen. What needs more than one
statement is looked at again before it is a finding. Two statements may be long, to confirm a loss: the size
of a large partition, and the bytes of chunks that look wrong.

``rows`` compares tables page by page, ``walk`` goes through the batches of each partition, ``places``
compares the objects with the object store.
"""
