"""Tables that went through terminals, web pages, word processors and issue trackers."""

import time
import unicodedata

import pytest

from braid.topo.errors import BadTopology
from braid.topo.facts import SWITCH
from braid.topo.look import View
from braid.topo.read import load, read_text
from braid.topo.read.plain import plain

TABLE = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV4\tPXB\tSYS\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tPIX\t24-47,72-95\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tPIX\tSYS\t X \n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_11\n"
)
BLANKS = [chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) == "Zs"]


def check(text):
    """The text is the machine of TABLE."""
    machine = read_text(text)
    view = View(machine)
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert [gpu.cpus for gpu in machine.gpus] == ["0-23,48-71", "24-47,72-95"]
    assert [gpu.numa for gpu in machine.gpus] == [0, 1]
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_11"]
    assert view.links_between("GPU0", "GPU1") == 4
    assert (view.path("GPU0", "mlx5_0"), view.path("GPU1", "mlx5_11")) == ("PXB", "PIX")


def test_as_it_was_printed():
    check(TABLE)


@pytest.mark.parametrize("blank", BLANKS, ids=lambda blank: f"U+{ord(blank):04X}")
def test_any_blank_of_unicode(blank):
    check(TABLE.replace("\t", blank * 3))
    check(TABLE.replace("\t", " ").replace(" ", blank))


@pytest.mark.parametrize("nothing", ["\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u200e"])
def test_characters_without_width(nothing):
    check(nothing + TABLE.replace("\t", f"\t{nothing}").replace("NV4", f"NV{nothing}4"))


@pytest.mark.parametrize("dash", ["\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212"])
def test_dashes_of_word_processors(dash):
    check(TABLE.replace("-", dash))


@pytest.mark.parametrize("head", ["\x1b[4m{}\x1b[0m", "[4m{}[0m", "\u241b[4m{}\u241b[0m",
                                  "^[[4m{}^[[0m", "\ufffd[1;4m{}\ufffd[m"])  # fmt: skip
def test_escape_codes_with_and_without_their_first_character(head):
    first, rest = TABLE.split("\n", 1)
    check(head.format(first) + "\n" + rest)
    check("\t".join(head.format(word) for word in first.split("\t")) + "\n" + rest)


def test_quotations_and_prompts():
    check("$ nvidia-smi topo -m\n" + TABLE + "root@node7:~# ")
    check("".join(f"> {line}\n" for line in TABLE.splitlines()))
    check("".join(f">> {line}\r\n" for line in TABLE.splitlines()))
    check("```\n" + TABLE + "```\n")


def test_markdown_table():
    rows = [line.split("\t") for line in TABLE.split("\n\n")[0].splitlines()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * 8)
    check("\n".join(lines) + "\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_11\n")


@pytest.mark.parametrize("form", ["utf-16", "utf-16-le", "utf-8-sig"])
def test_as_other_shells_save_it(form, tmp_path):
    file = tmp_path / "topo.txt"
    mark = b"\xff\xfe" if form == "utf-16-le" else b""
    file.write_bytes(mark + TABLE.replace("\n", "\r\n").encode(form))
    assert [nic.name for nic in load(file).nics] == ["mlx5_0", "mlx5_11"]


def test_rocm_smi_too(fixture_path):
    """Every reader of tables gets the plain text."""
    text = fixture_path("mi300x_x8.txt").read_text()
    assert read_text(text.replace(" ", "\u00a0")) == read_text(text)


def test_xml_below_a_prompt():
    machine = read_text(
        'root@vm:~# cat topo.xml\n<system version="1">\n<cpu numaid="0">'
        '<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90"/></pci></cpu>\n'
        "</system>\nroot@vm:~# \n"
    )
    assert [gpu.name for gpu in machine.gpus] == ["GPU0"]


def test_models_from_the_summary():
    """The table of nvidia-smi itself stands above that of topo -m in most reports."""
    summary = (
        "| NVIDIA-SMI 550.54  Driver Version: 550.54   CUDA Version: 12.4 |\n"
        "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |       0 |\n"
        "| N/A   31C    P0             61W /  400W |       0MiB /  81920MiB |      0% |\n"
        "|   1  Tesla V100-SXM2-32GB          Off  |   00000000:0B:00.0 Off |       0 |\n"
    )
    machine = read_text(summary + TABLE)
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"]


def test_letters_and_digits_stay():
    assert plain("GPU0 \u00e9\u4e2d 9") == "GPU0 \u00e9\u4e2d 9"
    assert plain("a\nb\r\nc\u2028d").splitlines() == ["a", "b", "c", "d"]


def mesh(count, links, model=""):
    """GPUs with as many links between every two."""
    names = [f"GPU{i}" for i in range(count)]
    rows = [[a, *("X" if a == b else f"NV{links}" for b in names)] for a in names]
    said = "".join(f"GPU {i}: {model} (UUID: GPU-{i}a)\n" for i in range(count)) if model else ""
    return said + "\t" + "\t".join(names) + "\n" + "\n".join("\t".join(row) for row in rows) + "\n"


@pytest.mark.parametrize(
    ("count", "links", "model", "switched", "own"),
    [
        (8, 18, "", True, 18),
        (4, 6, "", False, 18),  # GH200: three bundles of six
        (4, 6, "Tesla V100-SXM3-32GB", True, 6),
        (4, 4, "", False, 12),  # A100 without a switch
        (3, 8, "", True, 8),  # three of a server's eight H800
        (3, 12, "", True, 12),
        (3, 6, "Tesla V100-SXM2-32GB", True, 6),
        (2, 12, "", False, 12),
    ],
)
def test_bundles_or_switches(count, links, model, switched, own):
    machine = read_text(mesh(count, links, model))
    assert ({link.b for link in machine.gpu_links} == {SWITCH}) is switched
    assert View(machine).num_links("GPU0") == own


@pytest.mark.parametrize(
    "text",
    ["<system>" * 100_000, "x<system " * 100_000, "1 a" + " " * 300_000, "[" * 300_000,
     "\x1b[" + "0" * 300_000, " " * 300_000 + "x", "> " * 150_000 + "x", "a-" * 150_000],
)  # fmt: skip
def test_odd_text_takes_no_long_time(text):
    start = time.monotonic()
    with pytest.raises(BadTopology):
        read_text(f"y\n{text}\n{TABLE[:40]}\n")
    assert time.monotonic() - start < 10
