"""Verification at three sizes: in every test run, in an hour, and unattended.

Each check is a function that does a certain amount of work and reports what it found. ``tiers`` defines the
amount for each size; ``python -m verification SIZE`` runs the checks and writes results/verification.json and
docs/verification.md.
"""
