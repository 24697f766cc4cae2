"""Regular expressions over topic names and transactional ids, in time linear in the name.

The expression comes from a client (KIP-848, KIP-1152), so it must not be able to stop the broker by unbounded
backtracking, as it could with Python's ``re``. Kafka uses RE2 for the same reason. This is the part of RE2's
syntax that makes sense for names: literals, ``.``, classes, groups, alternatives, repetitions, ``^`` and
``$``, flag ``i``. What RE2 refuses (back references, look-around) is refused, and so are ``\\b`` and Unicode
classes, which no name needs.

The expression is parsed and compiled to a small program (Thompson's construction). Matching keeps the set of
possible positions in the program and advances all of them with each character. The transitions are cached, so
a second name costs one lookup per character.
"""

from typing import Final, NamedTuple, TypeAlias

LENGTH_MAX: Final = 1_000
DEPTH_MAX: Final = 50
PROGRAM_MAX: Final = 2_000
"""Compilation steps: repetitions are expanded, and ``((a{99}){99}){99}`` must not become a million."""
MOVES_MAX: Final = 4_096


class PatternError(ValueError):
    """An unsupported or invalid expression; the text says why."""


class _Set(NamedTuple):
    """A set of characters: ranges and other sets, or everything but these."""

    ranges: tuple[tuple[str, str], ...] = ()
    others: "tuple[_Set, ...]" = ()
    is_negated: bool = False
    ignores_case: bool = False

    def has(self, character: str) -> bool:
        """Whether the character is in the set."""
        cases = {character, character.lower(), character.upper()} if self.ignores_case else {character}
        found = any(low <= each <= high for low, high in self.ranges for each in cases)
        return (found or any(each.has(character) for each in self.others)) is not self.is_negated


_DIGITS: Final = (("0", "9"),)
_LOWER: Final = (("a", "z"),)
_UPPER: Final = (("A", "Z"),)
_WORD: Final = (*_LOWER, *_UPPER, *_DIGITS, ("_", "_"))
_SPACE: Final = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_ESCAPED_CLASSES: Final = {
    "d": _Set(_DIGITS),
    "D": _Set(_DIGITS, is_negated=True),
    "w": _Set(_WORD),
    "W": _Set(_WORD, is_negated=True),
    "s": _Set(_SPACE),
    "S": _Set(_SPACE, is_negated=True),
}
_POSIX_CLASSES: Final = {
    "alpha": (*_LOWER, *_UPPER),
    "digit": _DIGITS,
    "alnum": (*_LOWER, *_UPPER, *_DIGITS),
    "upper": _UPPER,
    "lower": _LOWER,
    "word": _WORD,
    "space": _SPACE,
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
}
_NOT_NEWLINE: Final = _Set((("\n", "\n"),), is_negated=True)


class _Sequence(NamedTuple):
    parts: "list[_Node]"


class _Choice(NamedTuple):
    choices: "list[_Node]"


class _Repeat(NamedTuple):
    part: "_Node"
    at_least: int
    at_most: int | None


class _Edge(NamedTuple):
    is_end: bool


_Node: TypeAlias = _Set | _Sequence | _Choice | _Repeat | _Edge


class _Parser:
    """Parses text to nodes."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError(f"the expression is longer than {LENGTH_MAX} characters")
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("there is a ')' without '('")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("the expression is incomplete")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _choice(self) -> _Node:
        choices = [self._sequence()]
        while self._take("|"):
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else _Choice(choices)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))
        return _Sequence(parts)

    def _repeated(self, part: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return part
        self._take("?")
        if self._peek() in ("*", "+", "?"):
            raise PatternError("a repetition cannot be repeated without a group")
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None  # a brace that is no repetition stands for itself
        self._at = end + 1
        at_least = int(low)
        at_most = (int(high) if high else None) if comma else at_least
        if max(at_least, at_most or 0) > LENGTH_MAX or (at_most is not None and at_most < at_least):
            raise PatternError("the bounds of a repetition are out of range")
        return at_least, at_most

    def _atom(self) -> _Node | None:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _NOT_NEWLINE
            case "^":
                return _Edge(is_end=False)
            case "$":
                return _Edge(is_end=True)
            case "*" | "+" | "?":
                raise PatternError(f"there is nothing to repeat before '{character}'")
            case "\\":
                return self._escape()
        return self._literal(character)

    def _literal(self, character: str) -> _Set:
        return _Set(((character, character),), ignores_case=self._ignores_case)

    def _escape(self) -> _Node:
        character = self._next()
        if character in _ESCAPED_CLASSES:
            return _ESCAPED_CLASSES[character]
        if character == "A":
            return _Edge(is_end=False)
        if character in "zZ":
            return _Edge(is_end=True)
        if character == "Q":
            quoted, _, _ = self._text[self._at :].partition("\\E")
            self._at = min(self._at + len(quoted) + 2, len(self._text))
            return _Sequence([self._literal(each) for each in quoted])
        if character.isalnum():
            raise PatternError(f"'\\{character}' is not supported")
        return self._literal(character)

    def _group(self) -> _Node | None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError(f"groups are nested deeper than {DEPTH_MAX}")
        ignored_case = self._ignores_case
        if self._take("?") and not self._take(":") and not self._group_name() and self._flags():
            # Flags without a body apply to the rest of the enclosing group.
            self._depth -= 1
            return None
        node = self._choice()
        if not self._take(")"):
            raise PatternError("a group is not closed")
        self._ignores_case = ignored_case
        self._depth -= 1
        return node

    def _group_name(self) -> bool:
        is_named = self._take("P<")
        if not is_named and self._peek() == "<":
            # Not a look-behind, which starts with '<=' or '<!'.
            is_named = self._text[self._at + 1 : self._at + 2].isalpha()
        if is_named:
            end = self._text.find(">", self._at)
            if end < 0:
                raise PatternError("the name of a group is not closed")
            self._at = end + 1
        return is_named

    def _flags(self) -> bool:
        """Parse flags; return whether they have no body."""
        is_on = True
        while (flag := self._next()) not in ":)":
            if flag == "-":
                is_on = False
            elif flag == "i":
                self._ignores_case = is_on
            elif flag not in "msU":
                raise PatternError(f"'(?{flag}' is not supported")
        return flag == ")"

    def _class(self) -> _Set:
        is_negated = self._take("^")
        parts: list[_Set] = []
        while not parts or not self._take("]"):
            parts.append(self._class_part())
        return _Set(others=tuple(parts), is_negated=is_negated)

    def _class_part(self) -> _Set:
        if self._take("[:"):
            end = self._text.find(":]", self._at)
            name = self._text[self._at : max(end, self._at)]
            if name.removeprefix("^") not in _POSIX_CLASSES:
                raise PatternError(f"there is no class [:{name}:]")
            self._at = end + 2
            return _Set(_POSIX_CLASSES[name.removeprefix("^")], is_negated=name.startswith("^"))
        low = self._next()
        if low == "\\":
            low = self._next()
            if low in _ESCAPED_CLASSES:
                return _ESCAPED_CLASSES[low]
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return self._literal(low)
        self._next()
        high = self._next()
        if high == "\\":
            high = self._next()
        if high < low:
            raise PatternError(f"the range {low}-{high} is reversed")
        return _Set(((low, high),), ignores_case=self._ignores_case)


_NOTHING: Final = _Set()
_Instruction: TypeAlias = tuple[str, _Set, int, int]
"""The operation ("set", "fork", "start", "end", "match"), its characters, and where to continue."""


class _Compiler:
    """Compiles nodes to a program, back to front: ``add`` puts a node before a position."""

    def __init__(self) -> None:
        self.program: list[_Instruction] = [("match", _NOTHING, -1, -1)]
        self._steps = 0

    def _emit(self, what: str, characters: _Set, first: int, second: int = -1) -> int:
        self.program.append((what, characters, first, second))
        return len(self.program) - 1

    def add(self, node: _Node, then: int) -> int:
        # Counted here and not per instruction, because an empty group can be repeated too.
        self._steps += 1
        if self._steps > PROGRAM_MAX:
            raise PatternError("the expression is too large after its repetitions are expanded")
        match node:
            case _Set():
                return self._emit("set", node, then)
            case _Edge(is_end):
                return self._emit("end" if is_end else "start", _NOTHING, then)
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self.add(part, then)
                return then
            case _Choice(choices):
                first, *others = (self.add(choice, then) for choice in choices)
                for other in others:
                    first = self._emit("fork", _NOTHING, first, other)
                return first
            case _Repeat(part, at_least, at_most):
                return self._add_repeat(part, at_least, at_most, then)

    def _add_repeat(self, part: _Node, at_least: int, at_most: int | None, then: int) -> int:
        if at_most is None:
            loop = self._emit("fork", _NOTHING, then, then)
            body = self.add(part, loop)
            self.program[loop] = ("fork", _NOTHING, body, then)
            then = loop
        else:
            after = then
            for _ in range(at_most - at_least):
                then = self._emit("fork", _NOTHING, self.add(part, then), after)
        for _ in range(at_least):
            then = self.add(part, then)
        return then


class NamePattern:
    """A regular expression that must match a whole name."""

    def __init__(self, text: str) -> None:
        compiler = _Compiler()
        start = compiler.add(_Parser(text).parse(), 0)
        self._program = compiler.program
        self._start = self._closure({start}, at_start=True)
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        places = self._start
        for character in name:
            move = self._moves.get((places, character))
            if move is None:
                if len(self._moves) >= MOVES_MAX:
                    self._moves.clear()
                move = self._moves[places, character] = self._move(places, character)
            places = move
            if not places:
                return False
        return 0 in self._closure(set(places), at_end=True)

    def _move(self, places: frozenset[int], character: str) -> frozenset[int]:
        reached: set[int] = set()
        # A repetition has the same set at many positions, and a set may be as long as the expression.
        asked: dict[int, bool] = {}
        for place in places:
            what, characters, then, _ = self._program[place]
            if what != "set":
                continue
            is_in = asked.get(id(characters))
            if is_in is None:
                is_in = asked[id(characters)] = characters.has(character)
            if is_in:
                reached.add(then)
        return self._closure(reached)

    def _closure(self, places: set[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """Return all positions reachable without consuming a character."""
        waiting = list(places)
        seen = set(places)
        while waiting:
            what, _, first, second = self._program[waiting.pop()]
            if what == "fork":
                reached = [first, second]
            elif (what == "start" and at_start) or (what == "end" and at_end):
                reached = [first]
            else:
                continue
            for place in reached:
                if place not in seen:
                    seen.add(place)
                    waiting.append(place)
        return frozenset(seen)
