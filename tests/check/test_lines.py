"""Histories as lines of JSON: what is written is read, and what is wrong is told with its line."""

import io
from pathlib import Path

import pytest
from support.models.perfect_log import correct_history

from semel.check import HistoryError, Produce, Topic, read_history, read_lines, write_lines
from semel.check.history import KINDS, READERS, to_line

GOOD = '{"op":"commit","process":"w","started":1,"ended":2,"outcome":"ok","transaction":"T"}\n'


def test_what_is_written_is_read() -> None:
    history = correct_history(1, 900)
    file = io.StringIO()
    write_lines(history, file)
    assert list(read_lines(file.getvalue().splitlines(keepends=True))) == history
    assert {type(each) for each in history} == set(KINDS.values()), "a history of every kind of operation"


def test_every_field_can_be_read() -> None:
    assert {name: set(fields) for name, fields in READERS.items()} == {
        name: set(kind._fields) for name, kind in KINDS.items()
    }


def test_defaults_are_left_out() -> None:
    assert to_line(Topic("t")) == '{"op":"topic","topic":"t"}\n'
    line = to_line(Produce("w", 1, None, "info", "t", 0, ("ä",), offset=3))
    assert line == (
        '{"op":"produce","process":"w","started":1,"ended":null,"outcome":"info","topic":"t","partition":0,'
        '"values":["ä"],"offset":3}\n'
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "this is not JSON: '{'"),
        ("[1]", "an operation is an object, not '[1]'"),
        ("{}", "op is None; it must be one of topic, init"),
        ('{"op":["x"]}', "op is ['x']; it must be one of topic, init"),
        ('{"op":"flush"}', "op is 'flush'; it must be one of topic, init"),
        ('{"op":"topic","topic":7}', "topic of topic must be a text, not 7"),
        ('{"op":"topic","topic":"t","size":7}', "topic has no field 'size'; it has topic, visibility"),
        ('{"op":"topic"}', "topic lacks topic"),
        ('{"op":"topic","topic":"t","visibility":"x"}', "visibility of topic must be one of marker, journal"),
        ('{"op":"topic","topic":"t","is_compacted":1}', "is_compacted of topic must be true or false, not 1"),
        (GOOD.replace('"ok"', '"maybe"'), "outcome of commit must be one of ok, fail, info, not"),
        (GOOD.replace('"ended":2', '"ended":0'), "commit ended at 0, before it started at 1"),
        (GOOD.replace('"ended":2', '"ended":2.5'), "ended of commit must be a whole number, not 2.5"),
        (GOOD.replace('"T"', "null"), "transaction of commit must be a text or a whole number, not null"),
        (GOOD.replace('"commit"', '"begin"'), "begin lacks transactional_id"),
        ('{"op":"poll","records":[[0]]}', "records of poll must be a list of [offset, value], not [[0]]"),
        ('{"op":"poll","records":[["0","a"]]}', "records of poll must be a list of [offset, value]"),
        ('{"op":"poll","ended":null}', "ended of poll must be a whole number, not null"),
        ('{"op":"produce","values":[]}', "values of produce must be a list of one value or more, not []"),
        ('{"op":"produce","values":[null]}', "values of produce must be a text or a whole number"),
        ('{"op":"send_offsets","claims":[["t",0,1]]}', "claims of send_offsets must be a list of [topic"),
    ],
)
def test_what_is_wrong_is_told(line: str, told: str) -> None:
    with pytest.raises(HistoryError) as caught:
        list(read_lines([GOOD, "\n", line.rstrip("\n") + "\n"], "h.jsonl"))
    assert str(caught.value).startswith("h.jsonl, line 3: ")
    assert told in str(caught.value)


def test_half_of_a_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(GOOD + GOOD[:30])
    assert len(list(read_history([path]))) == 1
    path.write_text(GOOD[:30] + "\n" + GOOD)
    with pytest.raises(HistoryError, match=r"line 1: .*JSON"):
        list(read_history([path]))


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(HistoryError, match=r"line 1: .*JSON"):
        list(read_history([path]))
