"""Regular expressions over topic names: as Python's, without its bad days."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.names import NamePattern, PatternError

SAME = [
    "orders",
    "a.*",
    "(a+)+b",
    "orders[-.][a-z]{2,3}",
    "(foo|bar).*x?",
    "^a$|b+",
    "[^a-c]+",
    r"\d+\.\w*",
    r"[\d_]+\S?",
    "(?:ab){0,3}c",
    "a{2}b{1,}",
    "x*?y",
    "()",
    "(a|)b",
    r"[a\-z]+",
    "[]a]",
    "(?i:Ab)c",
    "(?i)ab",
    "[-a]b",
    "a^b",
    "((a*)*)*b",
    "(?P<name>a)b",
    "(?i)[x-z]+|[^A-B]",
    r"\Aa\.b",
    "a{b",
]


@pytest.mark.parametrize("text", SAME)
@given(name=st.text("abcxyzAB.-_19", min_size=1, max_size=8))
def test_it_matches_what_python_matches(text: str, name: str) -> None:
    assert NamePattern(text).matches(name) == bool(re.fullmatch(text, name))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("[[:alpha:]]+", "abc", True),
        ("[[:^digit:]]+", "abc1", False),
        (r"\Qa.b\E+", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        (r"a\z", "a", True),
        (r"\W", "-", True),
        (r"\pL+", "é", True),
        (r"a\b.b", "a.b", True),
        ("(?-i:a)", "A", False),
        ("(?<n>a)", "a", True),
    ],
)
def test_what_re2_has_and_python_has_not(text: str, name: str, expected: bool) -> None:
    assert NamePattern(text).matches(name) is expected


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a)",
        "*a",
        "a**",
        "a{2}{3}*+",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?x)",
        r"\1",
        "[a",
        "[z-a]",
        "[[:foo:]]",
        "a{5,2}",
        "a{1001}",
        "(?P<n",
        "\\",
        "x" * 1_001,
        "((a{99}){99}){99}",
        "(((){999}){999}){999}",
    ],
)
def test_what_cannot_be_matched_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        NamePattern(text)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("orders/.*", "orders/é 1", True),
        ("[^a]+", "é/ ☃", True),
        ("[à-ü]+", "éè", True),
        (r"\W\s\D", "é\tx", True),
        ("a.b", "a\nb", False),
        ("(?i)É", "é", True),
        ("[[:punct:][:space:]]+", "/ :", True),
    ],
)
def test_names_may_have_any_character(text: str, name: str, expected: bool) -> None:
    assert NamePattern(text).matches(name) is expected


def test_a_long_class_that_is_repeated_is_asked_once() -> None:
    letters = "".join(f"{each}-{each}" for each in "abcdefghijklmnopqrstuvwxyz" * 12)
    assert not NamePattern(f".*[{letters}]{{900}}").matches("a" * 249)


@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", ".*.*.*.*.*.*.*b", "(a?){60}a{60}b", "(.*a){20}b"])
def test_no_expression_takes_long(text: str) -> None:
    # Backtracking would need longer than the age of the universe.
    assert not NamePattern(text).matches("a" * 249)


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        pattern = NamePattern(text)
    except PatternError:
        return
    assert pattern.matches("topic.name-1") in (True, False)
