"""docs/topo.md says what the tool does, and its picture is the tool's."""

import re
from pathlib import Path

from braid.topo.document import document
from braid.topo.read import load
from braid.topo.show import tables
from braid.topo.show.svg import draw
from braid.topo.words import NCCL_LEGEND, NVIDIA_LEGEND

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/topo.md").read_text()


def test_picture_and_table(fixture_path):
    """braid topo --from tests/python/fixtures/topo/h100_x8.xml --svg docs/results/topo_h100.svg"""
    whole = document(load(fixture_path("h100_x8.xml")))
    assert (REPOSITORY / "docs/results/topo_h100.svg").read_text() == draw(whole)
    assert "\n".join(tables.rate_lines(whole.derived.links)[1:]) in PAGE


def test_every_code_is_explained():
    sources = (REPOSITORY / "python/braid/topo/verdicts").glob("*.py")
    text = "".join(path.read_text() for path in sources)
    codes = set(re.findall(r'Verdict\(\s*"([a-z0-9-]+)"', text))
    assert len(codes) == 25
    explained = set(re.findall(r"`([a-z0-9-]+)`", PAGE))
    assert codes <= explained


def test_every_word_is_explained():
    words = set(re.findall(r"[A-Z][A-Z0-9#]+", PAGE)) | {"X", "-"}
    assert set(NVIDIA_LEGEND) | set(NCCL_LEGEND) <= words


def test_linked_from_the_readme():
    assert "(docs/topo.md)" in (REPOSITORY / "README.md").read_text()
