"""Measurements, as ratios in one run: Semel beside what a user would pick instead, and beside nothing at all.

`__main__` is the command. `side_by_side` has the workloads and their harness, `bars` the targets of earlier
work; `subjects` starts brokers, `figures` computes, `results` keeps, `plots` and `page` show, and `profile`
says where the time goes.
"""
