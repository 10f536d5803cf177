"""Pictures: the same input gives the same bytes, and what is drawn is what was said."""

from pathlib import Path
from xml.etree import ElementTree

from braid.plan import chart
from braid.plan.timeline import strips

GOLDEN = Path(__file__).parents[1] / "fixtures/plan"
ONE_GPU = strips("serial", 0.42, 0.0, 1)
OVERLAPPED = strips("per-layer", 0.42, 0.64, 4)


def test_timeline_of_one_gpu_is_its_computation():
    assert chart.as_text(ONE_GPU, 20) == "GPU  #################### 420 ms\n     # computation"


def test_timeline_as_text():
    assert chart.as_text(OVERLAPPED, 30) + "\n" == (GOLDEN / "timeline.txt").read_text()


def test_timeline_as_svg():
    assert chart.as_svg(OVERLAPPED, "one step") == (GOLDEN / "timeline.svg").read_text()


def test_svg_is_whole_and_stands_alone():
    text = chart.as_svg(OVERLAPPED, 'a < b & "c"')
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title").text == 'a < b & "c"'
    assert "href" not in text
    assert "<script" not in text


def test_bars_are_as_long_as_their_time():
    text = chart.as_text([chart.stacked("a", [("computation", 1.0)]), _two()], 40)
    first, second = text.splitlines()[:2]
    assert first.count("#") == 20
    assert (second.count("#"), second.count("=")) == (10, 30)


def _two():
    return chart.stacked("b", [("computation", 0.5), ("communication", 1.5)])


def test_nothing_to_draw():
    assert chart.as_text([]) == "  "
    ElementTree.fromstring(chart.as_svg([], "empty"))


def test_times_as_words():
    assert [chart.time_text(s) for s in (2.5, 0.42, 5e-6, 12345)] == [
        "2.5 s",
        "420 ms",
        "5 us",
        "12345 s",
    ]
