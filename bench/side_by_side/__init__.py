"""Semel beside what a user would pick instead: the same work, the same machine, the same run.

`measuring` is the harness: what a workload is, and rounds in which the subjects take turns. Every other file
is one workload with one idea, but for `clients` and `places`, which they share, `catalogue`, which lists
them, and `bar`, which says what should have come out.
"""
