"""`semel pipeline verify`: shows the result of comparing input and output."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from semel.cli.options import connected
from semel.cli.output import show, show_json, show_pairs
from semel.cli.sparking import FAILED, SparkSettings, running_spark, sparking

if TYPE_CHECKING:
    from semel.spark.pipeline.verify import Answer


def verify(settings: SparkSettings, question: Mapping[str, Any], as_json: bool) -> None:
    """Compare, show the result, and exit with 1 if there are differences."""
    with sparking():
        from semel.spark.pipeline import verify as comparing

        asked = comparing.Question(**question)
        with connected(asked.bootstrap_servers) as client:
            # Reject invalid questions before Spark is started, which takes a while.
            comparing.check(client, asked)
            with running_spark(asked.pipeline_id, settings) as spark:
                answer = comparing.verify(spark, client, asked)
    if as_json:
        show_json({"is_right": answer.is_right, **asdict(answer)})
    else:
        _show(answer)
    if not answer.is_right:
        raise typer.Exit(FAILED)


def _show(answer: "Answer") -> None:
    torn = "unknown without --checkpoint" if answer.torn_batches is None else answer.torn_batches
    show_pairs(
        {
            "inputs": answer.inputs,
            "outputs_expected": answer.expected,
            "outputs_found": answer.found,
            "lost": answer.lost,
            "doubled": answer.doubled,
            "foreign": answer.foreign,
            "torn_batches": torn,
        }
    )
    for name, examples in answer.examples.items():
        show(f"{name}: {', '.join(examples)}")
    if answer.unended:
        show(f"Decided and not ended: {', '.join(answer.unended)}. Restart the pipeline to end them.")
    if answer.is_right:
        show("Every record counts as it should.")
