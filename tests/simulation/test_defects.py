"""The simulation finds every known defect in the code as it must not be."""

import pytest

from simulation.__main__ import killed_by
from simulation.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None, f"{mutant.name!r} survives"
