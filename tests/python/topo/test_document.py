"""braid.topo/1: the published schema, round trips, old documents, documents that lie."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from braid.topo.document import Derived, document, json_schema, read, to_json
from braid.topo.errors import BadTopology
from braid.topo.facts import Machine
from braid.topo.look import View
from braid.topo.read import load, read_text
from braid.topo.read.live import read_tree

REPOSITORY = Path(__file__).parents[3]


def test_published_schema():
    """python -m braid.topo.document > docs/topo.schema.json"""
    assert json.loads((REPOSITORY / "docs/topo.schema.json").read_text()) == json_schema()


def test_names_are_stable():
    """Scripts read these; a name may be added, none may go."""
    names = {f.name for part in (Machine, Derived) for f in fields(part)}
    assert names >= {
        "source", "name", "cpu", "iommu", "numa", "pci", "gpus", "gpu_links", "nics", "paths",
        "peers", "links", "matrix", "roles", "verdicts",
    }  # fmt: skip
    links = json_schema()["$defs"]["Rate"]["properties"].keys()
    assert links >= {
        "a", "b", "kind", "name", "basis", "count", "theoretical_gbps", "duplex_gbps", "gbit",
        "nccl_gbps", "measured_gbps", "measured_how",
    }  # fmt: skip


def test_round_trip(saved):
    machine = load(saved)
    text = to_json(document(machine))
    assert read_text(text) == machine
    assert json.loads(text).keys() - {"schema"} == (
        {f.name for f in fields(Machine)} | {f.name for f in fields(Derived)}
    )


def test_round_trip_of_trees(box, server):
    for machine in (read_tree(box().root), read_tree(server.root)):
        assert read(to_json(document(machine))) == machine


def test_old_document(fixture_path):
    """Written by the first version and never changed since; what it says must not change either."""
    machine = load(fixture_path("version_1.json"))
    view = View(machine)
    assert machine.name == "node7"
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert view.links_between("GPU0", "GPU1") == 18
    assert view.path("GPU0", "mlx5_0") == "PIX"
    assert machine.pci[0].link.max_gts == 32
    assert machine.peers[0].read == "ok"


def test_small_document():
    """Everything but the source has a default."""
    machine = read('{"schema": "braid.topo/1", "source": {"format": "live"}}')
    assert machine.gpus == []


def changed(path, value):
    """A good document with one thing changed."""
    parts = json.loads((Path(__file__).parents[1] / "fixtures/topo/version_1.json").read_text())
    place = parts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(parts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cut off or damaged"),
        ("[" * 100000, "cut off or damaged"),
        ("[]", "has no schema"),
        ("{}", "has no schema"),
        ('{"schema": "braid.topo/2"}', "of 'braid.topo/2', braid reads braid.topo/1"),
        ('{"schema": "braid.topo/1"}', "source"),
        (changed(["gpus", 0, "name"], ""), "name of 0 characters"),
        (changed(["gpus", 0, "name"], "GPU1"), "GPU1 is there twice"),
        (changed(["gpus", 0, "name"], 7), r"gpus\[0\].name: asked for str, found 7"),
        (changed(["gpus", 0, "model"], "\x1b[31mred"), "no text for people"),
        (changed(["gpus", 0, "cpus"], "all"), "'all' is no list of processors"),
        (changed(["gpus", 0, "pci"], "0000:ff:00.0"), "no PCI device 0000:ff:00.0"),
        (changed(["pci", 0, "parent"], "0000:16:00.0"), "its own bridge"),
        (changed(["pci", 0, "parent"], "0000:ee:00.0"), "no bridge 0000:ee:00.0"),
        (changed(["pci", 0, "link", "width"], -1), "out of reach"),
        (changed(["pci", 0, "link", "gts"], float("nan")), "a finite number"),
        (changed(["pci", 0, "link", "gts"], 10**400), "asked for float"),
        (changed(["gpu_links", 0, "count"], 10**9), "out of reach"),
        (changed(["gpu_links", 0, "b"], "GPU9"), "not from a GPU"),
        (changed(["gpu_links", 0, "b"], "mlx5_0"), "not from a GPU"),
        (changed(["gpu_links", 0, "kind"], "rope"), "asked for one of nvlink, xgmi, c2c"),
        (changed(["paths", 0, "b"], "GPU0"), "no two devices"),
        (changed(["nics", 0, "gbit"], 1e300), "out of reach"),
        (changed(["cpu", "sockets"], -2), "out of reach"),
        (changed(["surprise"], 1)[:-5], "cut off or damaged"),
    ],
)
def test_refused(text, said):
    with pytest.raises(BadTopology, match=said) as caught:
        read(text)
    assert str(caught.value).isprintable()


def test_too_many_devices():
    gpus = [{"name": f"GPU{i}"} for i in range(257)]
    text = json.dumps({"schema": "braid.topo/1", "source": {"format": "live"}, "gpus": gpus})
    with pytest.raises(BadTopology, match="257 GPUs are more than the 256"):
        read(text)
