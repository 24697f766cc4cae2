"""The state machines through the function that runs them for as long as one likes."""

import pytest
from hypothesis import Phase

from simulation.mutants import MUTANTS, applied
from verification import machines
from verification.machines import run


def test_so_many_rules_are_carried_out_and_are_the_same_every_time() -> None:
    found = run(250)
    assert found.failures == []
    assert found.rules >= 250
    assert run(250) == found


def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # To be found is enough; it need not be made smaller.
    monkeypatch.setattr(machines, "PHASES", (Phase.generate,))
    (mutant,) = (each for each in MUTANTS if each.name == "the last partition gets no marker")
    with applied(mutant):
        found = run(20_000)
    assert found.failures
    assert "seed 0" in found.failures[0]
