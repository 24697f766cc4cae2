"""Checks that take a while: generators that report their progress, and stop when they are asked to."""
