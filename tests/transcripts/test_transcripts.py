"""Every transcript is what the rules answer; and a transcript that cannot be run says which line is wrong."""

import re
from pathlib import Path

import pytest
from transcripts.parsing import TranscriptError
from transcripts.printing import FACTS
from transcripts.runner import run

from semel.core.facts import DURABLE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_the_rules_answer_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    answered = run(written)
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(answered)
    else:
        assert written == answered


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# One.\n> produce t/0", "line 2: no command 'produce'"),
        ("> topic t\n\n> Produce t/0 colour=red", "line 3: Produce has no option 'colour'"),
        ("> topic t\n\n> Produce t/0 twice", "line 3: Produce has no word 'twice'"),
        ("> topic t\n> OffsetFetch g t/0=1", "line 2: OffsetFetch has no option 't/0'"),
        ("> topic t\n> Produce t/1", "line 2: 't/1' is not a partition"),
        ("> Produce t/0", "line 1: there is no topic 't'"),
        ("> a: EndTxn commit", "line 1: no client 'a' has begun"),
        ("> a: InitProducerId id", "line 1: InitProducerId needs version="),
        ("> topic t partitions=1 partitions=2", "line 1: partitions is given twice"),
        ("> clock +1week", "line 1: '1week' is not a duration"),
        ("> a:InitProducerId", "line 1: '> a:InitProducerId' is not a command"),
        ("answer: ok", "line 1: 'answer: ok' is neither"),
    ],
)
def test_a_line_that_cannot_be_run_is_named(text: str, message: str) -> None:
    with pytest.raises(TranscriptError, match=re.escape(message)):
        run(text)


def test_an_answer_that_differs_is_replaced_and_nothing_else() -> None:
    text = "# A comment.\n> topic t\nanswer: no\n# Another.\n\n> state t/0\n\n# The end.\n"
    answered = run(text)
    assert answered == run(answered)
    assert answered.splitlines() == [
        "# A comment.",
        "> topic t",
        "facts:",
        "  TopicCreated t, 1 partition",
        "answer: ok",
        "# Another.",
        "",
        "> state t/0",
        "log start 0, high watermark 0, last stable offset 0",
        "",
        "# The end.",
    ]


def test_every_durable_fact_can_be_printed() -> None:
    assert set(FACTS) == set(DURABLE)


def test_behaviours_that_transcripts_cite_are_on_the_list() -> None:
    listed = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/behaviours.md").read_text(), re.MULTILINE))
    for path in TRANSCRIPTS:
        for cited in re.findall(r"\bbehaviours? (\d+(?:(?:, | and )\d+)*)", path.read_text()):
            assert set(re.findall(r"\d+", cited)) <= listed, path.name


def test_every_transcript_is_in_the_table() -> None:
    listed = re.findall(r"\(tests/transcripts/(\w+\.txt)\)", (ROOT / "ARCHITECTURE.md").read_text())
    assert sorted(listed) == [path.name for path in TRANSCRIPTS]
