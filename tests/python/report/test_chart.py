"""Line charts: where points go, and what happens at the edges."""

from xml.etree import ElementTree

import pytest

from braid.report.chart import Level, Line, draw

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*arguments, **named):
    """The chart as a tree; a page's svg needs no namespace, a parser's does."""
    text = draw(*arguments, **named).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ElementTree.fromstring(text)


def dots(root):
    return [(float(d.get("cx")), float(d.get("cy"))) for d in root.iter(f"{SVG}circle")]


def test_points_go_right_and_up():
    points = [(1024, 10.0), (2048, 20.0), (4096, 40.0)]
    (x0, y0), (x1, y1), (x2, y2) = dots(drawn("t", [Line("a", "c0", points)]))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # sizes double
    assert y0 - y1 == pytest.approx((y1 - y2) / 2, abs=0.2)


def test_log_times():
    points = [(1024, 1.0), (2048, 10.0), (4096, 100.0)]
    (_, y0), (_, y1), (_, y2) = dots(drawn("t", [Line("a", "c0", points)], log=True))
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_theory_is_drawn_where_it_fits():
    line = Line("a", "c0", [(1024, 100.0), (2048, 200.0)])
    assert "spec" in draw("t", [line], [Level("spec", 450)])
    assert "spec" not in draw("t", [line], [Level("spec", 4500)])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "points", [[], [(1024, 5.0)], [(1, 1e-6), (1 << 40, 1e6)], [(1024, 0.0), (2048, 0.0)]]
)
def test_edges(points, log):
    for x, y in dots(drawn("t", [Line("<&>", "c0", points)], log=log)):
        assert 0 <= x <= 460
        assert 0 <= y <= 250
