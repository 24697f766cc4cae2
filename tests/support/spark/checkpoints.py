"""Checkpoints as Spark writes them, for tests that have no Spark."""

import json
from pathlib import Path

from semel.spark.checkpoint import Checkpoint


class Query:
    """A query, represented by its checkpoint."""

    def __init__(self, directory: Path, query_id: str) -> None:
        self.directory = directory / query_id
        (self.directory / "offsets").mkdir(parents=True)
        (self.directory / "metadata").write_text(json.dumps({"id": query_id}))

    def batch(self, number: int, end: int, began: int | None = None) -> Checkpoint:
        offsets: dict[str, object] = {"in": {"0": end, "1": end}}
        if began is not None:
            offsets["began:"] = {"in": {"0": began, "1": began}}
        text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offsets)])
        (self.directory / "offsets" / str(number)).write_text(text)
        return Checkpoint(str(self.directory))
