"""Damaged bytes for every decoder, and every input that ever failed once more.

The check itself is in ``verification.fuzzing``; here it runs on a few thousand inputs, and is shown to find
what it is for.
"""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from verification.fuzz_targets import by_name, targets
from verification.fuzzing import CORPUS, INPUTS_PER_SEED, problem, replay, run
from verification.made_up import messages

KEPT = sorted(CORPUS.glob("*.bin"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_an_input_that_failed_once(path: Path) -> None:
    assert replay(path) is None


def test_nothing_but_typed_errors_comes_out(tmp_path: Path) -> None:
    found = run(3_000, corpus=tmp_path)
    assert [(each.target, each.seed, each.what) for each in found.failures] == []
    assert found.inputs == 3_000
    assert found.seeds == range(3_000 // INPUTS_PER_SEED)


def test_every_target_reads_what_is_valid() -> None:
    for target in targets():
        for seed in range(3):
            assert problem(target, target.make(random.Random(seed))) is None, target.name


def test_every_message_is_a_target() -> None:
    assert {f"{message.__name__}-{version}" for message, version in messages()} < {
        target.name for target in targets()
    }
    assert len({target.name for target in targets()}) == len(targets())


def _raise(data: bytes) -> None:
    raise KeyError("nobody expects this")


def _loop(data: bytes) -> None:
    while True:
        pass


def _allocate(data: bytes) -> Any:
    return bytearray(2**25)


@pytest.mark.parametrize(
    ("read", "what"),
    [(_raise, "KeyError"), (_loop, "it takes more than"), (_allocate, "bytes of memory for an input")],
)
def test_what_should_not_be_is_found_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any, what: str
) -> None:
    broken = dataclasses.replace(by_name("vector"), read=read)
    monkeypatch.setattr("verification.fuzzing.targets", lambda: [broken])
    monkeypatch.setattr("verification.fuzzing.SECONDS_MAX", 0.05)
    monkeypatch.setattr("verification.fuzzing.SAMPLE", 1)
    found = run(2, corpus=tmp_path)
    assert [each.target for each in found.failures] == ["vector", "vector"]
    assert all(what in each.what for each in found.failures)
    assert {each.data for each in found.failures} == {path.read_bytes() for path in tmp_path.iterdir()}
    assert all(path.name.startswith("vector.") for path in tmp_path.iterdir())
