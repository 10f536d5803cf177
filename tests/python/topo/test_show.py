"""Views: what they say, that pictures and pages are well formed and ask nothing of the network."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from braid.topo.document import document
from braid.topo.facts import Gpu, Machine, Nic, Source
from braid.topo.measured import Measured
from braid.topo.read import load, read_text
from braid.topo.read.live import read_tree
from braid.topo.show import matrix, tables, tree
from braid.topo.show.html import page
from braid.topo.show.layout import layout
from braid.topo.show.svg import draw


def parsed(svg):
    return ElementTree.fromstring(svg)


def test_every_machine_is_drawn(saved):
    machine = load(saved)
    root = parsed(draw(document(machine)))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for gpu in machine.gpus:
        assert gpu.name in texts
    titles = " ".join(e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}title"))
    for nic in machine.nics:
        assert nic.name in titles


def test_every_chip_has_its_place(saved):
    """Chips inside their group, groups inside their node, no two on top of each other."""
    plan = layout(load(saved))
    boxes = [(chip, group) for node in plan.nodes for group in node.boxes for chip in group.chips]
    boxes += [(group, node) for node in plan.nodes for group in node.boxes]
    for inner, outer in boxes:
        assert outer.x <= inner.x
        assert inner.x + inner.width <= outer.x + outer.width
        assert outer.y <= inner.y
        assert inner.y + inner.height <= outer.y + outer.height
    places = [(c.x, c.y) for node in plan.nodes for group in node.boxes for c in group.chips]
    assert len(set(places)) == len(places)
    assert all(node.x + node.width <= plan.width for node in plan.nodes)


def test_pages_are_self_contained(saved):
    html = page(document(load(saved)))
    assert not re.search(r"<script|<link|<img|@import|url\(|src=", html)
    assert set(re.findall(r"https?://[^\"' <]*", html)) == {"http://www.w3.org/2000/svg"}
    for tag in ("main", "ul", "table", "pre", "svg", "h2", "li"):
        assert html.count(f"<{tag}>") + html.count(f"<{tag} ") == html.count(f"</{tag}>")


def test_names_cannot_break_out():
    """What a file calls a device is text, wherever it is shown."""
    evil = '"><script>x</script>&'
    machine = Machine(Source("live"), name=evil, gpus=[Gpu(evil, evil)], nics=[Nic(evil + "n")])
    for text in (draw(document(machine)), page(document(machine))):
        assert "<script>" not in text
    parsed(draw(document(machine)))


def test_measured_colours(fixture_path):
    machine = load(fixture_path("h100_x8.xml"))
    for gbps, colour in ((400, "good"), (300, "fair"), (100, "poor")):
        svg = draw(document(machine, [Measured("nvlink", gbps, "x")]))
        assert svg.count(f'class="line {colour}"') == 8


def test_tree(box, server):
    lines = "\n".join(tree.lines(read_tree(box().root)))
    assert "switch 0000:16:00.0  PCIe 5 x16, 63.0 GB/s" in lines
    assert "mlx5_1  InfiniBand 4X NDR 400 Gbit/s  backend  0000:89:00.0" in lines
    assert "no GPU" in tree.lines(read_tree(server.root))[0]
    assert any("NVMe 0000:81:00.0" in line for line in tree.lines(read_tree(server.root)))


def test_tree_names_links(fixture_path):
    assert tree.lines(load(fixture_path("h100_x8.xml")))[-1].endswith(
        "NVSwitch: GPU0-7, 18 NVLinks each"
    )
    mesh = tree.lines(load(fixture_path("mi300x_x8.txt")))[-1]
    assert mesh.endswith("1 xGMI link between every two of GPU0-7")


def test_matrix_legends(fixture_path):
    machine = load(fixture_path("h100_x8.xml"))
    ours, theirs = ("\n".join(matrix.lines(machine, words)) for words in ("nvidia", "nccl"))
    assert "NV#   a bonded set" in ours or "NV#  a bonded set" in ours
    assert "PXN" not in ours
    assert "PXN" in theirs
    assert "NIC4  ens1f0  Ethernet 100 Gbit/s    frontend" in ours
    assert matrix.lines(replace(machine, gpus=[], nics=[])) == []


def test_rates_of_a_mesh(fixture_path):
    lines = tables.rate_lines(document(load(fixture_path("mi300x_x8.txt"))).derived.links)
    assert lines[2].startswith("GPU0-7   xGMI, 7 links to 7 peers, 64 each   448     896")


def test_a_measured_link_says_how_much_of_its_rate(fixture_path):
    """The picture was amber beside "450", and only hovering told why."""
    machine = load(fixture_path("h100_x8.xml"))
    bare = draw(document(machine))
    assert bare.count(">450</text>") == 8
    assert "measured of specified" not in bare
    measured = draw(document(machine, [Measured("nvlink", 280.6, "a test")]))
    assert measured.count(">281 of 450</text>") == 8
    assert "measured of specified" in measured


@pytest.mark.parametrize(
    ("encoding", "branch"),
    [("utf-8", "├─ "), ("cp437", "├─ "), ("ascii", "|- "), ("latin-1", "|- "), (None, "|- ")],
)
def test_branches_are_drawn_with_what_the_terminal_has(fixture_path, encoding, branch):
    drawn = tree.lines(load(fixture_path("h100_x8.xml")), encoding)
    assert drawn[1].startswith(branch)
    "\n".join(drawn).encode(encoding or "ascii")


def test_nics_that_only_the_matrix_places():
    """All stood under "NUMA node not told", though paths to GPUs say where they are."""
    head = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tNIC3\tNUMA Affinity\n"
    rows = (
        "GPU0 X NV12 NV12 PXB SYS NODE SYS 0\n"
        "GPU1 NV12 X NV12 PXB SYS NODE SYS 0\n"
        "GPU2 NV12 NV12 X SYS PIX SYS SYS 1\n"
        "NIC0 PXB PXB SYS X SYS NODE SYS\nNIC1 SYS SYS PIX SYS X SYS SYS\n"
        "NIC2 NODE NODE SYS NODE SYS X SYS\nNIC3 SYS SYS SYS SYS SYS SYS X\n"
    )
    machine = read_text(head + rows)
    assert [line.strip("│├└─ ") for line in tree.lines(machine)[1:]] == [
        "NUMA node 0",
        "PCIe switches, by the paths",
        "GPU0",
        "GPU1",
        "NIC0  backend",
        "NIC2  storage",
        "NUMA node 1",
        "PCIe switch, by the paths",
        "GPU2",
        "NIC1  backend",
        "NUMA node not told",
        "NIC3  storage",
        "NVSwitch: GPU0-2, 12 NVLinks each",
    ]
    found = {place.device: place for place in document(machine).derived.places}
    assert [found[f"NIC{i}"].numa for i in range(4)] == [0, 1, 0, None]
    assert found["GPU0"].is_told
    assert not found["NIC0"].is_told
    assert found["GPU0"].switches == found["GPU1"].switches == found["NIC0"].switches == 0
    assert found["GPU2"].switches == found["NIC1"].switches == 1
    assert found["NIC2"].switches is None
    # The drawing says the same.
    boxes = {chip.name: node.label for node in layout(machine).nodes
             for group in node.boxes for chip in group.chips}  # fmt: skip
    assert boxes["NIC2"] == "NUMA node 0"
    assert boxes["NIC3"] == "PCIe"


def test_bridges_of_virtual_machines_have_no_speed():
    """A bridge said "PCIe 1 x1, 0.2 GB/s", below it a GPU of generation 5."""
    text = (
        '<system version="1"><cpu numaid="0"><pci busid="0000:a1:00.0" class="0x060400"'
        ' link_speed="2.5 GT/s PCIe" link_width="1"><pci busid="0000:a4:00.0" class="0x030200"'
        ' link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90"/></pci></pci></cpu>'
        "</system>"
    )
    drawn = "\n".join(tree.lines(read_text(text)))
    assert "PCIe 1" not in drawn
    assert "PCIe 5 x16" in drawn
