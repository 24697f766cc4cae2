"""Deterministic simulation: the real rules, commit loop, reads and handlers under virtual time and faults.

One seed is one history, independent of the machine. Time is virtual (``virtual_time``), the disk is a list
that can be truncated (``disk``), the network loses, delays and repeats requests (``network``), and all
randomness comes from one generator. So a failing seed fails again, and its history can be shrunk
(``shrinking``).

``python -m simulation`` runs many seeds; ``python -m simulation --seed N`` shows one.
"""
