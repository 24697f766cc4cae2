"""Runs transcripts against the rules: a text file of commands, and under each the facts and the answer.

    # A retry of a batch is answered with the offset of the first write.
    > a: Produce orders/0 sequence=0 records=3
    facts: none
    answer: offset 0 (duplicate)

A command with a capital letter is a request of a client (``requests``). Any other is something that happens
to the broker, or a look at its state (``acts``). ``facts (unsynced)`` may be answered before their flush.
Numbers in parentheses are Kafka's error codes, as the newest clients of a generation receive them.

``pytest --rewrite-transcripts`` writes the answers of the rules into the files. Review the difference: every
line must be what the rules demand.
"""

from transcripts.acts import ACTS
from transcripts.parsing import Step, TranscriptError, read_call, read_transcript
from transcripts.requests import REQUESTS
from transcripts.session import Session

COMMANDS = {**REQUESTS, **ACTS}


def run(text: str) -> str:
    """The transcript with the answers that the rules give, and a blank line between steps."""
    transcript = read_transcript(text)
    session = Session()
    lines: list[str] = []
    for step in transcript.steps:
        if lines and not step.before:
            lines.append("")
        lines += [*step.before, step.command, *_answer(session, step)]
    return "\n".join([*lines, *transcript.after, ""])


def _answer(session: Session, step: Step) -> list[str]:
    try:
        call = read_call(step.command)
        if call.verb not in COMMANDS:
            raise TranscriptError(f"no command {call.verb!r}; there are: {' '.join(sorted(COMMANDS))}")
        return list(COMMANDS[call.verb](session, call))
    except TranscriptError as error:
        raise TranscriptError(f"line {step.line}: {error}") from None
