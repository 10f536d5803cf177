"""Answers on terminals of any width: nothing is cut, everything is there."""

import io
import re

import pytest
from rich.console import Console

from braid.plan import catalogue, hardware, layouts, models, network, ranking, tables, work
from braid.plan.amounts import amount, is_binary
from braid.plan.chart import as_text, bar_width, stacked
from braid.plan.collective import algorithms_for, report
from braid.plan.parallel import tensor
from braid.plan.predict import Request
from braid.plan.report import Row

LLAMA = models.find("llama3-70b")
H200 = hardware.find("h200")


def _collective():
    path, nics = H200.paths[0], network.find("ib-ndr-8x400")
    asked = Request("all_reduce", 64 << 20, 8, 2)
    return report(asked, path, nics, algorithms_for(asked, path, nics))


ANSWERS = {
    "hw": catalogue.machines,
    "machine": lambda: catalogue.machine("h200"),
    "links": catalogue.links,
    "networks": catalogue.networks,
    "models": catalogue.models_table,
    "model": lambda: work.shapes(models.find("deepseek-v3"), 32768),
    "collective": _collective,
    "tp": lambda: tensor.report(tensor.Question(LLAMA, 8, 4096, H200), list(H200.paths), []),
    "what-if": lambda: ranking.by_hardware(LLAMA, 8, 4096, [], 0.5).report,
    "layout": lambda: (
        layouts.by_layout(
            layouts.Job(models.find("deepseek-v3"), H200, 8, 1, None, 4096, 64), 12
        ).report
    ),
}


def printed(answer, width):
    out = Console(file=io.StringIO(), width=width, highlight=False)
    for part in (*tables.of_lines(answer.lines, width), *tables.of_rows(answer.rows, width)):
        out.print(part)
    return out.file.getvalue()


def plain(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", ANSWERS)
def test_names_and_numbers_are_whole_at_every_width(name, width):
    answer = ANSWERS[name]()
    text = printed(answer, width)
    rows = text.splitlines()
    assert max(map(len, rows)) <= width
    assert "\u2026" not in text
    for row in answer.rows:
        assert any(line.startswith(row.name) for line in rows)
    binary = is_binary(cell for row in answer.rows for cell in row.cells.values())
    for cell in (cell for row in answer.rows for cell in row.cells.values()):
        assert amount(cell, binary) in text
    for line in answer.lines:
        if width >= 80:
            assert line.label in text
        assert set(line.label.split()) <= set(text.split())  # at 60 they may go on below


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_number_rests_on_is_beside_or_below(name, width):
    answer = ANSWERS[name]()
    text = plain(printed(answer, width))
    said = [line.quantity.origin for line in answer.lines] + [row.note for row in answer.rows]
    for origin in said:
        assert plain(origin) in text


def test_a_note_that_all_rows_share_needs_no_names():
    rows = [Row(name, {}, "the same") for name in ("first-of-two", "second-of-two")]
    below = [str(part) for part in tables.of_rows(rows, 20)][-1]
    assert below == "the same"


def test_a_name_longer_than_the_terminal_goes_on_in_the_next_line():
    name = "a-folder-of-forty-characters/config.json" * 2
    out = Console(file=io.StringIO(), width=50)
    for part in tables.of_rows([Row(name, {}, "")], 50):
        out.print(part)
    assert name in out.file.getvalue().replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bars_leave_room_for_names_and_times(columns):
    strips = [stacked(name, [("computation", 0.573)]) for name in ("mi355x-xgmi", "a100-nvlink3")]
    bars = as_text(strips, bar_width(strips, columns)).splitlines()
    assert all(line.endswith("573 ms") for line in bars[:2])
    assert max(map(len, bars)) <= columns
