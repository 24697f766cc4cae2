"""Verification at three sizes: in every test run, in an hour, and unattended.

Each check is a function that does a number of things and says what it found. ``tiers`` says how many in
which size, ``python -m verification SIZE`` runs them and writes results/verification.json and
docs/verification.md.
"""
