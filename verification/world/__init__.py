"""Runs pipelines on Spark whose environment changes: every record counts once, or the query refuses.

A scenario is a sequence of steps that follows from a seed. Steps run a pipeline, stop it in the middle of a
batch, and change what it relies on: checkpoints are lost, restored and swapped, topics are deleted and
created again, groups are reset, the broker is restored from a backup. After every run that ends without an
error, the output is compared with a model of the truth (`truth`). A run that fails must fail with one of
Semel's own errors (`verdict`). Everything else ends the scenario as a failure, with its seed and its steps.

`python -m verification.world --seed 7` repeats a scenario.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
