"""Measurements, as ratios in one run: Semel beside what a user would pick instead, and beside nothing at all.

`__main__` is the command. `side_by_side` has the workloads and their harness, `security` those about ACLs and
TLS, `cluster` those about many brokers, `bars` the targets of earlier work; `subjects` starts brokers,
`figures` computes, `results` keeps, `plots`, `page` and `readme` show, `reasons` says why a target is not
reached, and `profile` where the time goes.
"""
