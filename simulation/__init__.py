"""Deterministic simulation: the real rules, commit loop, reads and handlers under virtual time and faults.

One seed is one history. Nothing in it depends on the machine: time is virtual (``virtual_time``), the disk
is a list that can be cut (``disk``), the network loses, holds and repeats (``network``), and everything that
happens by chance comes from one generator. So a seed that fails fails again, and can be made smaller
(``shrinking``).

``python -m simulation`` runs many seeds; ``python -m simulation --seed N`` shows one.
"""
