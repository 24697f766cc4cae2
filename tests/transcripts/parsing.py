"""Reads transcripts: comments, commands, and the answers under them. Knows no command.

A line that begins with ``>`` is a command, a line that begins with ``#`` is a comment, and the lines under a
command are its answer, up to a blank line, a comment or the next command. A command has an optional client
with a colon, a verb, words, and options (``name=value``).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_COMMAND = re.compile(r"> (?:(?P<client>[\w-]+): )?(?P<verb>[\w-]+)(?P<rest>( .*)?)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")


class TranscriptError(Exception):
    """A transcript that cannot be run, with the number of the line."""


@dataclass(frozen=True)
class Step:
    """A command and its answer; ``before`` are the comments and blank lines above it."""

    line: int
    before: tuple[str, ...]
    command: str
    answer: tuple[str, ...]


@dataclass(frozen=True)
class Transcript:
    """All steps, and the lines after the last one."""

    steps: tuple[Step, ...]
    after: tuple[str, ...]


def read_transcript(text: str) -> Transcript:
    """Split a transcript into its steps."""
    steps: list[Step] = []
    before: list[str] = []
    lines = list(enumerate(text.splitlines(), start=1))
    at = 0
    while at < len(lines):
        number, line = lines[at]
        at += 1
        if not _is_answer(line) and not line.startswith(">"):
            before.append(line)
            continue
        if not line.startswith(">"):
            raise TranscriptError(
                f"line {number}: {line!r} is neither a command, nor a comment, nor an answer"
            )
        answer: list[str] = []
        while at < len(lines) and _is_answer(lines[at][1]):
            answer.append(lines[at][1])
            at += 1
        steps.append(Step(number, tuple(before), line, tuple(answer)))
        before = []
    return Transcript(tuple(steps), tuple(before))


def _is_answer(line: str) -> bool:
    return bool(line.strip()) and not line.startswith((">", "#"))


@dataclass
class Call:
    """A command, taken apart. What is taken out of it is removed, so that the rest can be refused."""

    client: str | None
    verb: str
    words: list[str]
    options: dict[str, str]
    pairs: dict[str, str] = field(default_factory=dict)
    """``orders/0=5``: a partition and a value."""

    def word(self, what: str) -> str:
        """The next word."""
        if not self.words:
            raise TranscriptError(f"{self.verb} needs {what}")
        return self.words.pop(0)

    def rest(self) -> Iterator[str]:
        """All words that are left."""
        while self.words:
            yield self.words.pop(0)

    def flag(self, name: str) -> bool:
        """Whether this word is there."""
        if name not in self.words:
            return False
        self.words.remove(name)
        return True

    def option(self, name: str, default: str | None = None) -> str:
        """The value of an option; it must be there if there is no default."""
        value = self.options.pop(name, default)
        if value is None:
            raise TranscriptError(f"{self.verb} needs {name}=")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """The value of an option, as a number."""
        value = self.option(name, None if default is None else str(default))
        if not re.fullmatch(r"-?\d+", value):
            raise TranscriptError(f"{name}={value} is not a number")
        return int(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """The values of an option, as numbers; none if it is not there."""
        value = self.option(name, "")
        if not re.fullmatch(r"(\d+(,\d+)*)?", value):
            raise TranscriptError(f"{name}={value} is not a list of numbers")
        return tuple(map(int, value.split(","))) if value else ()

    def duration_ms(self, name: str, default: str) -> int:
        """The value of an option, as a duration in milliseconds."""
        return duration_ms(self.option(name, default))

    def finish(self) -> None:
        """Refuse what nothing has asked for."""
        for what, left in (("word", self.words), ("option", self.options), ("option", self.pairs)):
            for each in left:
                raise TranscriptError(f"{self.verb} has no {what} {each!r}")


def read_call(command: str) -> Call:
    """Take a command apart."""
    found = _COMMAND.fullmatch(command)
    if found is None:
        raise TranscriptError(f"{command!r} is not a command")
    call = Call(found["client"], found["verb"], [], {})
    for word in found["rest"].split():
        name, equals, value = word.partition("=")
        if not equals:
            call.words.append(word)
            continue
        values = call.pairs if "/" in name else call.options
        if name in values:
            raise TranscriptError(f"{name} is given twice")
        values[name] = value
    return call


def duration_ms(text: str) -> int:
    """``60s`` is 60,000."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise TranscriptError(f"{text!r} is not a duration, such as 60s or 1d")
    return int(found[1]) * _UNITS_MS[found[2]]
