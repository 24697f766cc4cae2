"""Measurements as ratios within one run: Semel beside its alternatives, and beside the client's floor.

`__main__` is the command. `side_by_side` has the workloads and their harness, `security` the workloads about
ACLs and TLS, `cluster` those about many brokers, `bars` earlier targets. `subjects` starts brokers, `figures`
computes, `results` stores, `plots`, `page` and `readme` present, `reasons` explains missed targets, and
`profile` shows where the time goes.
"""
