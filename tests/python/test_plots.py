"""Plots of records: readable on a phone, and as themselves in both themes."""

import json
import re
from pathlib import Path

import chromium as browser
import pytest

from braid.bench import curves
from braid.bench.host import plot
from braid.probe import picture
from braid.record import bench, gpu, probe
from braid.terminal import plots

RECORDS = Path(__file__).parents[2] / "records"
SIZE = re.compile(r'<svg [^>]*width="([\d.]+)pt"')
NAMES = ("flexlink_2", "paced_421", "gloo_4", "p2p_4", "bench_host", "latency_2")


def saved(name):
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def draw(name, path):
    document = saved(name)
    if document["schema"] == gpu.SCHEMA:
        curves.save(gpu.from_json(document), path)
    elif document["schema"] == bench.SCHEMA:
        plot.save(bench.from_json(document), path)
    else:
        picture.save(probe.from_json(document), path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every kind of picture, by the record's name."""
    folder = tmp_path_factory.mktemp("plots")
    for name in NAMES:
        draw(name, folder / f"{name}.svg")
    return {name: folder / f"{name}.svg" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_letters_of_ten_points_stay_so_on_a_phone(drawn, name):
    """358 pixels of 390 are left to a picture: no wider, and it is not made smaller."""
    svg = drawn[name].read_text()
    assert float(SIZE.search(svg)[1]) <= 358
    assert plots.LETTER >= plots.SMALL >= 9.5


@pytest.mark.parametrize("name", NAMES)
def test_every_colour_has_a_twin_in_the_dark(drawn, name):
    svg = drawn[name].read_text()
    rules = re.findall(r'\[style\*="((?:fill|stroke): #[0-9a-f]{6})"\]', svg)
    styles = " ".join(re.findall(r' style="([^"]*)"', svg))
    used = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", styles))
    assert len(used) >= 3
    assert used == set(rules)


def test_twins_stand_out_from_dark_paper():
    for colour in ("#12355b", "#1b6ca8", "#7f8a96", "#4f9d69", "#8e5ea2", "#b5484b", "#3d3fa8"):
        assert plots.contrast(plots.twin(colour), "#12181f") >= 4.5, colour
    assert plots.twin("#e08e1b") == "#e08e1b"  # bright enough as it is
    assert plots.twin("#ffffff") == "#12181f"


@pytest.mark.skipif(browser.PROGRAM is None, reason="skipped: needs chromium")
@pytest.mark.parametrize(("scheme", "paper"), [("light", 255), ("dark", 18)])
def test_a_browser_shows_the_reader_s_theme(drawn, tmp_path, scheme, paper):
    """The paper, and letters, which have no colour of their own."""
    with browser.Chromium(tmp_path) as chrome:
        chrome.show_as(scheme=scheme)
        for path in drawn.values():
            chrome.open(path, 390)
            fill = chrome.ask("getComputedStyle(document.querySelector('#patch_1 path')).fill")
            ink = chrome.ask("getComputedStyle(document.querySelector('[id^=text_] use')).fill")
            assert int(re.findall(r"\d+", fill)[0]) == paper, path
            assert (int(re.findall(r"\d+", ink)[0]) > 200) == (scheme == "dark"), path


def test_a_picture_without_a_dark_version_is_another_format(tmp_path):
    draw("paced_421", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_what_links_are_specified_to_carry_is_on_the_plot(tmp_path):
    record = gpu.from_json(saved("flexlink_8"))
    curves.save(record, tmp_path / "p.svg", ("all_reduce",), ("NVLink 4, specified: 450", 450.0))
    svg = (tmp_path / "p.svg").read_text()
    assert "<!-- NVLink 4, specified: 450 -->" in svg
    assert "<!-- all-reduce -->" in svg
    assert "<!-- all-gather -->" not in svg
    assert "over PCIe" not in svg


def test_what_paced_links_could_carry_is_on_the_plot(tmp_path):
    """Of links that nobody paces it is not known, and against Gloo it says nothing."""
    for name, is_there in (("paced_421", True), ("h800_scaled_2", True), ("steady", False)):
        draw(name, tmp_path / "p.svg")
        found = re.findall(r"<!-- possible: ([\d.]+)x -->", (tmp_path / "p.svg").read_text())
        assert bool(found) == is_there, name
        if name == "paced_421":
            assert found == ["1.75"]
