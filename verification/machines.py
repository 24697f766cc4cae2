"""Run the state machines of ``tests/property`` for any number of rules.

Each machine does random steps with the real rules of the core beside a simple model, and compares them after
every step. One seed is a few runs of every machine.
"""

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

TESTS: Final = Path(__file__).parent.parent / "tests"
RUNS: Final = 8
"""Runs of each machine per seed."""
STEPS: Final = 50
PHASES: Final = (Phase.generate, Phase.shrink)


@dataclass
class Machines:
    """The results of all runs."""

    rules: int = 0
    """The number of rules carried out."""
    failures: list[str] = field(default_factory=list)
    seeds: range = range(0)
    """The seeds used."""


def run(rules: int, first_seed: int = 0) -> Machines:
    """Carry out at least this many rules, divided among all machines."""
    found = Machines()
    machines = list(_machines())
    number = first_seed
    while found.rules < rules:
        for machine in machines:
            _run_one(machine, number, found)
        number += 1
        if found.failures:
            break
    found.seeds = range(first_seed, number)
    return found


def _machines() -> Iterator[type[RuleBasedStateMachine]]:
    """Yield every machine that the tests run."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    for path in sorted((TESTS / "property").glob("*machine*.py")):
        module = _module(path)
        for name, value in vars(module).items():
            is_machine = isinstance(value, type) and issubclass(value, RuleBasedStateMachine)
            if is_machine and value.__module__ == module.__name__ and not name.startswith("_"):
                yield value


def _module(path: Path) -> Any:
    name = f"property_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_one(machine: type[RuleBasedStateMachine], number: int, found: Machines) -> None:
    class Counted(machine):  # type: ignore[misc, valid-type]
        """The machine, with a counter."""

        _checks = 0

        def check_invariants(self, *args: Any, **options: Any) -> None:
            """Called once before the first rule, and after each."""
            found.rules += self._checks > 0
            self._checks += 1
            super().check_invariants(*args, **options)

    Counted.__name__ = Counted.__qualname__ = machine.__name__
    options = settings(
        max_examples=RUNS,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(number)(Counted), settings=options)
    except Exception as error:  # noqa: BLE001 - any error is reported
        lines = "".join(traceback.format_exception_only(error))
        notes = "\n".join(getattr(error, "__notes__", ()))
        found.failures.append(f"{machine.__name__}, seed {number}: {lines}{notes}")
