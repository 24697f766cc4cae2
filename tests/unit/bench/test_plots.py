"""Pictures: well-formed, complete, and in the right places."""

from xml.etree import ElementTree

import pytest

from bench.figures import Estimate
from bench.plots import Axis, bar_plot, line_plot, ratio_plot

SPACE = "{http://www.w3.org/2000/svg}"


def parts(picture: str, kind: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(picture).findall(SPACE + kind)


def words(picture: str) -> list[str]:
    return [each.text or "" for each in parts(picture, "text")]


def test_ratios_are_dots_with_whiskers() -> None:
    picture = ratio_plot("a < b", {"one": {"semel": Estimate(2, 1.5, 3, 3), "kafka": Estimate(1, 1, 1, 3)}})
    assert {"a < b", "one", "semel", "kafka", "1 ×"} <= set(words(picture))
    semel, kafka = (float(each.attrib["cx"]) for each in parts(picture, "circle"))
    assert semel > kafka


def test_bars_are_as_long_as_their_values_and_go_both_ways() -> None:
    picture = bar_plot("title", {"cell": {"semel": 4.0, "kafka": 2.0, "mock": -1.0}})
    widths = [float(each.attrib["width"]) for each in parts(picture, "rect")[-3:]]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert widths[2] == pytest.approx(widths[1] / 2, rel=0.01)
    begins = [float(each.attrib["x"]) for each in parts(picture, "rect")[-3:]]
    assert begins[2] < begins[0] == begins[1]


def test_growth_is_a_line_for_each_subject() -> None:
    picture = line_plot("title", "records", "seconds", {"semel": [(1, 1), (2, 2), (4, 4)], "kafka": [(1, 2)]})
    assert len(parts(picture, "circle")) == 4
    lines = [each for each in parts(picture, "line") if each.attrib["stroke-width"] == "2"]
    assert len(lines) == 2
    slopes = [
        (float(each.attrib["y2"]) - float(each.attrib["y1"]))
        / (float(each.attrib["x2"]) - float(each.attrib["x1"]))
        for each in lines
    ]
    assert slopes[0] == pytest.approx(slopes[1], rel=0.01)


def test_an_axis_puts_its_ends_at_its_ends() -> None:
    axis = Axis(1, 100, 10, 210, logarithmic=True)
    assert [axis.at(1), axis.at(10), axis.at(100)] == pytest.approx([10, 110, 210])
