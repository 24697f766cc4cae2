"""Semel beside its alternatives: the same work, the same machine, the same run.

`measuring` is the harness: it defines workloads, and rounds in which the subjects take turns. Every other
file is one workload with one idea, except `clients` and `places`, which workloads share, `catalogue`, which
lists them, and `bar`, which has the targets.
"""
