"""Measurements, as ratios in one run: Semel beside what the same client reaches against nothing at all."""
