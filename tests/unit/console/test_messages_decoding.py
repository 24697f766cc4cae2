"""Bytes as text: nothing active, nothing unbounded, nothing lost without a word."""

import pytest

from semel.console.messages.decoding import Decoding, View


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        (b"plain", "text", "plain"),
        ("grüße\n\tzwei".encode(), "text", "grüße\n\tzwei"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        (b"\x1b[2J\x1b]0;title\x07", "text", r"\x1b[2J\x1b]0;title\x07"),
        ("a\u202eb".encode(), "text", r"a\u202eb"),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        (b'{"a": 1.10, "a": 2}', "json", '{"a": 1.10, "a": 2}'),
        (b"{not json", "json", "{not json"),
    ],
)
def test_what_is_shown_in_a_list(data: bytes | None, kind: str, text: str) -> None:
    shown = Decoding().show(data, 1000)
    assert (shown.kind, shown.text, shown.is_truncated) == (kind, text, False)


def test_json_is_formatted_without_changing_numbers_or_repeated_names() -> None:
    shown = Decoding().show(b'{"a": 1.10, "a": 12345678901234567890}', 1000, pretty=True)
    assert shown.text == '{\n  "a": 1.10,\n  "a": 12345678901234567890\n}'
    assert Decoding().show(b"{not json", 1000, pretty=True).kind == "text"
    assert Decoding(View.JSON).show(b"not json", 1000, pretty=True).note == "this is not JSON"
    deep = b"[" * 100_000
    assert Decoding().show(deep, 1 << 20, pretty=True).kind == "text"


def test_views() -> None:
    data = b"\x00ab\xc3\xa4\xff\n"
    assert Decoding(View.RAW).show(data, 100).text == r"\x00ab\xc3\xa4\xff\n"
    assert Decoding(View.TEXT).show(data, 100).text == "\\x00abä\\xff\n"
    assert Decoding(View.HEX).show(data, 100).text == "00 61 62 c3 a4 ff 0a"
    assert Decoding(View.HEX).show(data, 100, pretty=True).text == (
        "00000000  00 61 62 c3 a4 ff 0a                             .ab...."
    )


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("data", [b"x" * 10_000_000, b'{"a": "' + b"y" * 10_000_000, b"\xff" * 10_000_000])
@pytest.mark.parametrize("pretty", [False, True])
def test_ten_megabytes_are_cut(view: View, data: bytes, pretty: bool) -> None:
    shown = Decoding(view).show(data, 4096, pretty=pretty)
    assert shown.is_truncated
    assert len(shown.text) <= 25_000
    assert shown.size_bytes == len(data)


def test_a_character_is_not_cut_in_half() -> None:
    assert Decoding().show("äöü".encode(), 3).text == "ä"
    assert Decoding().show("äöü".encode(), 3).kind == "text"
