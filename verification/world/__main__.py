"""``python -m verification.world``: play scenarios by their seeds."""

import argparse
import sys
from collections import Counter
from functools import partial

from support.spark.jobs import start_spark

from verification.world.broker import HOSTS
from verification.world.runs import SETTINGS, Scenario, declared, one
from verification.world.verdict import End


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m verification.world", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="*", help="these scenarios, with all their steps")
    parser.add_argument("--first", type=int, default=0, help="the first of a row of seeds")
    parser.add_argument("--count", type=int, default=5, help="how many there are in the row")
    parser.add_argument("--declared", action="store_true", help="declared pipelines with several sinks")
    parser.add_argument("--over", choices=list(HOSTS), help="three brokers over PostgreSQL, or Apache Kafka")
    options = parser.parse_args()
    scenario: Scenario = one
    if options.declared or options.over:
        scenario = partial(declared, host=HOSTS.get(options.over))
    failed, ends, refusals = [], Counter[End](), Counter[str]()
    spark = start_spark(settings=SETTINGS)
    for seed in options.seed or range(options.first, options.first + options.count):
        played = scenario(spark, seed)
        if options.seed and not played.failure:
            print(played.steps)
        print(f"seed {seed}: {played.seconds:.1f} s, {'FAILED' if played.failure else 'well'}", flush=True)
        failed += [seed] if played.failure else []
        ends += played.ends
        refusals.update(words[:70] for words in played.refusals)
    spark.stop()
    print(", ".join(f"{count} {end.value}" for end, count in ends.items()))
    for words, count in refusals.most_common():
        print(f"{count:5} × {words}")
    print(f"failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
