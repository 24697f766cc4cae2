"""Committed offsets: what a group may commit, fetch and delete."""

from semel.core.types import Apply, Decide

DECIDE: dict[type, Decide] = {}
APPLY: dict[type, Apply] = {}
