"""What links carry: the tables, the narrowest link of a chain, and what a record adds."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from braid.plan import hardware, shipped
from braid.topo import tables
from braid.topo.errors import BadTopology
from braid.topo.facts import SWITCH, Gpu, GpuLink, Machine, PciDevice, PcieLink, Source
from braid.topo.measured import Measured, load, rates_for
from braid.topo.rates import rates
from braid.topo.read import load as load_machine
from braid.topo.show.tables import rate_lines, rows

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("gts", "width", "gbps"),
    [(8, 16, 15.754), (16, 16, 31.508), (32, 16, 63.015), (64, 16, 121.0), (128, 16, 242.0)],
)
def test_pcie(gts, width, gbps):
    assert tables.pcie_gbps(gts, width) == pytest.approx(gbps, rel=5e-4)
    assert tables.pcie_gbps(gts, width // 2) == pytest.approx(gbps / 2, rel=5e-4)
    assert tables.pcie_gbps(0, width) is None
    assert tables.pcie_speed(tables.pcie_generation(gts)) == gts


@pytest.mark.parametrize(
    ("model", "gbps"),
    [
        ("P100", 80),
        ("Tesla V100-SXM2-32GB", 150),
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA A800-SXM4-80GB", 200),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H200", 450),
        ("h800", 200),
        ("NVIDIA GB200", 900),
        ("NVIDIA B200", 900),
        ("AMD Instinct MI250X", 350),
        ("AMD Instinct MI300X OAM", 448),
        ("MI355X", 535.5),
        ("NVIDIA RTX A6000", 56.25),
    ],
)
def test_data_sheets(model, gbps):
    spec = tables.model_known(model)
    assert spec.gbps_each * spec.links == gbps


def test_same_as_the_tables_of_plan():
    """Two tools, one set of data sheets."""
    shipped = pytest.importorskip("braid.plan.shipped")
    rows = shipped.table("links")
    for name, row in rows.items():
        if name.startswith("pcie"):
            payload = row["payload"] / row["frame"]
            gbps = row["gt_per_s"] * payload * row["lanes"] / 8
            assert tables.pcie_gbps(row["gt_per_s"], row["lanes"]) == pytest.approx(gbps)
        for gpu in row["gpu"].split(", "):
            if spec := tables.model_known(gpu):
                assert spec.gbps_each == row["lane_gbps"] * row["lanes"], name
                assert spec.links == row["links"], name
                assert spec.nccl_gbps_each == row.get("nccl_link_gbps"), name


def test_what_only_topo_knew_is_in_the_tables_of_plan():
    """Export models, bridges and old slots, from which `braid plan` computes as well."""
    assert hardware.link_gbps("nvlink3-a800") == 200
    assert hardware.link_gbps("nvlink3-bridge") == 56.25
    assert [hardware.link_gbps(f"pcie{i}") for i in (1, 2)] == [4, 8]
    for name in hardware.names():
        slot = next((path for path in hardware.find(name).paths if path.shape == "host"), None)
        model = name.split("-")[0].replace("rtx", "RTX ")
        if slot:
            generation = tables.pcie_of_model(model)
            assert slot.rate_gbps == tables.pcie_gbps(tables.pcie_speed(generation), 16), name


def test_tables_have_no_copy_here(monkeypatch):
    """What is changed in the data is changed in both tools."""
    links = json.loads(json.dumps(shipped.table("links")))
    links["nvlink4"]["lane_gbps"] *= 2
    links["pcie5"]["gt_per_s"] = 33.0
    try:
        monkeypatch.setattr(shipped, "table", {"links": links}.__getitem__)
        importlib.reload(tables)
        assert tables.model_known("h100").gbps_each == 50
        assert tables.pcie_speed(5) == 33
    finally:
        monkeypatch.undo()
        importlib.reload(tables)
    assert tables.model_known("h100").gbps_each == 25


def test_unknown_models():
    assert tables.model_known("NVIDIA L20") is None
    assert tables.spec_for(Gpu("GPU0"), "xgmi") is None
    assert tables.spec_for(Gpu("GPU0"), "nvlink").gbps_each == 25
    assert tables.links_of(Gpu("GPU0", arch="sm_100")).gbps_each == 50


@pytest.mark.parametrize(
    ("arch", "vendor", "model", "gbps"),
    [
        ("x86_64", "AuthenticAMD", 1, 16),
        ("x86_64", "GenuineIntel", 79, 6),
        ("x86_64", "GenuineIntel", 106, 10),
        ("x86_64", "GenuineIntel", 143, 22),
        ("x86_64", "GenuineIntel", 207, 40),
        ("arm64", "ARM", None, 6),
        ("riscv", "", None, None),
    ],
)
def test_sockets(arch, vendor, model, gbps):
    assert tables.socket_gbps(arch, vendor, model) == gbps


def chained(*links):
    """A GPU below bridges, each with its link; the first is the GPU's own."""
    names = ["gpu", *(f"bridge{i}" for i in range(len(links) - 1))]
    parents = [*names[1:], None]
    pci = [
        PciDevice(name, "gpu" if name == "gpu" else "switch", parent, link=PcieLink(*link))
        for name, parent, link in zip(names, parents, links, strict=True)
    ]
    (rate,) = rates(Machine(Source("live"), pci=pci, gpus=[Gpu("GPU0", pci="gpu")]))
    return rate.name, rate.theoretical_gbps


def test_narrowest_link_counts():
    assert chained((32.0, 16)) == ("PCIe 5 x16", 63.015)
    assert chained((32.0, 16), (16.0, 8)) == ("PCIe 4 x8, at a bridge above", 15.754)
    assert chained((32.0, 16), (2.5, 1)) == ("PCIe 5 x16", 63.015)  # a switch's fiction


def test_ports_are_not_counted():
    """A port tells the link below it, an idle GPU's too."""
    port = PciDevice("port", "port", link=PcieLink(8.0, 16, 32.0, 16))
    gpu = PciDevice("gpu", "gpu", "port", link=PcieLink(8.0, 16, 32.0, 16))
    (rate,) = rates(Machine(Source("live"), pci=[port, gpu], gpus=[Gpu("GPU0", pci="gpu")]))
    assert (rate.name, rate.theoretical_gbps) == ("PCIe 5 x16", 63.015)


def test_directions():
    machine = Machine(Source("live"), gpus=[Gpu("GPU0", "h200"), Gpu("GPU1", "h200")])
    linked = Machine(
        machine.source, gpus=machine.gpus, gpu_links=[GpuLink("GPU0", "GPU1", "nvlink", 6)]
    )
    first, second = rates(linked)
    assert (first.a, first.b, second.a, second.b) == ("GPU0", "GPU1", "GPU1", "GPU0")
    assert (first.theoretical_gbps, first.duplex_gbps, first.gbit) == (150, 300, 1200)
    assert first.nccl_gbps == pytest.approx(123.6)


def test_measured_by_nccl(fixture_path):
    """2 x H200: 256 MiB from each GPU in about 1.04 ms."""
    found = load(REPOSITORY / "records/gpu_large_2.json")
    assert found.gpu == "NVIDIA H200"
    (one,) = found.rates
    assert one.kind == "nvlink"
    assert 250 < one.gbps < 300
    machine = load_machine(fixture_path("h200_vm_x8.xml"))
    row = next(row for row in rows(rates(machine, found.rates)) if "NVLink" in row.words)
    assert row.measured_gbps == one.gbps
    assert row.part == pytest.approx(one.gbps / 450)
    assert any(
        line.startswith("measured: NCCL all_gather")
        for line in rate_lines(rates(machine, found.rates))
    )


def test_measured_by_nccl_in_the_newer_form(tmp_path):
    run = {"who": "nccl", "family": "nccl", "samples_us": [1.0], "median_us": 1.0, "p5_us": 1.0}
    run |= {"p95_us": 1.0, "busbw_gbps": 361.4, "wrong": 0}
    result = {"op": "all_gather", "bytes": 256 << 20, "total_bytes": 2 << 30, "dtype": "bfloat16"}
    result |= {"mode": "eager", "calls_per_sample": 1, "host_share": None, "absent": {}}
    wrong = {**run, "busbw_gbps": 900.0, "wrong": 1}
    ours = {**run, "who": "braid", "family": "braid", "busbw_gbps": 400.0}
    words = dict.fromkeys(("command", "commit", "driver", "cuda", "torch", "nccl", "braid"), "")
    host = {"cpu": "", "cores": 1, "memory_gib": 1.0, "kernel": ""}
    record = {"schema": "braid.gpu/2", "date": "2026-11-21T00:00:00", "dirty": False, **words}
    record |= {"gpu": "NVIDIA H200", "host": host, "ranks": 8, "sizes": "", "settings": {}}
    record |= {"options": {}, "results": [{**result, "runs": [run, wrong, ours]}]}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    found = load(path)
    assert found.gpu == "NVIDIA H200"
    assert [(one.kind, one.gbps) for one in found.rates] == [("nvlink", 361.4)]
    assert found.rates[0].how == "NCCL all_gather 256 MiB, 8 GPUs, 2026-11-21"


@pytest.mark.parametrize(("options", "gbps"), [({}, 375), ({"BRAID_LINK_CAP": "nvlink:147"}, 280)])
def test_measured_by_whoever_uses_nvlink_alone(tmp_path, options, gbps):
    """braid held to NVLink counts, braid over all links does not, nor NVLink held to a rate."""
    document = json.loads((REPOSITORY / "records/flexlink_2.json").read_text())
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**document, "options": options}))
    (one,) = load(path).rates
    assert one.gbps == pytest.approx(gbps, abs=5)
    library = "NCCL" if options else "braid over NVLink"
    assert one.how.startswith(f"{library} all_gather ")


TIMES = {"samples_us": [1.0], "p5_us": 1.0, "p50_us": 1.0, "p95_us": 1.0, "p99_us": 1.0}


def probe(path, kind, cases, **more):
    """A record of a probe: cases are (group, case, GB/s); a pair's case is "gpu0>gpu1"."""
    series = [
        {"group": group, "case": case, "bytes": 1, "times": TIMES, "gbps": gbps}
        | dict(zip(("start", "end"), case.split(">"), strict=True) if ">" in case else ())
        for group, case, gbps in cases
    ]
    record = {"schema": "braid.probe/1", "kind": kind, "command": "", "date": "2026-11-21T00:00:00"}
    record |= {"commit": "", "dirty": False, "device": "2 x NVIDIA H200", "ranks": 0}
    record |= {"host": {"cpu": "", "cores": 1, "memory_gib": 1.0, "kernel": ""}, "versions": {}}
    record |= {"settings": {}, "options": {}, "series": series, **more}
    path.write_text(json.dumps(record))
    return path


PAIRS = [("one way", "gpu0>gpu1", 390.04), ("one way", "gpu1>gpu0", 396.0)]
HOST = [("d2h 1 MiB", "gpu0", 50.0), ("h2d 16 MiB", "gpu0", 55.4), ("h2d 16 MiB", "gpu1", 27.2)]


@pytest.mark.parametrize(
    ("kind", "cases", "rates"),
    [
        ("p2p", [*PAIRS, ("both ways", "gpu0>gpu1", 780.0)],
         [("pair", "GPU0", "GPU1", 390.0), ("pair", "GPU1", "GPU0", 396.0)]),
        ("host", [*HOST, ("all h2d 16 MiB", "2 at once", 99.0), ("all h2d 16 MiB", "gpu1", 99.0)],
         [("pcie", "GPU0", None, 55.4), ("pcie", "GPU1", None, 27.2)]),
        ("interference", [("alone", "gpu0>gpu1", 1.0)], []),
    ],
)  # fmt: skip
def test_measured_by_probes(tmp_path, kind, cases, rates):
    path = probe(tmp_path / "record.json", kind, cases)
    found = load(path)
    assert found.gpu == "NVIDIA H200"
    assert [(one.kind, one.device, one.peer, one.gbps) for one in found.rates] == rates
    assert load(probe(path, kind, cases, device="")).rates == []


def test_probes_number_the_gpus_that_they_were_allowed_to_see(tmp_path):
    visible = {"options": {"CUDA_VISIBLE_DEVICES": "5,GPU-9c"}}
    path = probe(tmp_path / "record.json", "host", HOST, **visible)
    gpus = [Gpu(f"GPU{i}", "NVIDIA H200", uuid=f"GPU-{i}c0ffee") for i in range(8)]
    machine = Machine(Source("live"), gpus=[*gpus, Gpu("GPU8", "NVIDIA H200", uuid="GPU-9c0ffee")])
    found = rates_for(machine, path)
    assert [(one.device, one.gbps) for one in found] == [("GPU5", 55.4), ("GPU8", 27.2)]
    with pytest.raises(
        BadTopology, match=r"record\.json: a record with GPU5, the machine has 2 GPUs"
    ):
        rates_for(replace(machine, gpus=gpus[:2]), path)
    probe(path, "host", HOST, options={"CUDA_VISIBLE_DEVICES": "5"})
    with pytest.raises(BadTopology, match="gpu1, where CUDA_VISIBLE_DEVICES names 1 GPUs"):
        load(path)


def test_every_gpu_has_its_own_host_rate_and_a_nic_has_none(fixture_path, tmp_path):
    """One GPU's best was put on all GPUs, and on NICs beside them."""
    machine = load_machine(fixture_path("h100_x8.xml"))
    cases = [("h2d 16 MiB", f"gpu{i}", 27.0 if i == 5 else 55.0 + i / 10) for i in range(7)]
    path = probe(tmp_path / "record.json", "host", cases, device="8 x NVIDIA H100 80GB HBM3")
    found = rates(machine, rates_for(machine, path))
    own = {rate.a: rate.measured_gbps for rate in found if rate.kind == "pcie"}
    assert [own[f"GPU{i}"] for i in range(8)] == [55, 55.1, 55.2, 55.3, 55.4, 27, 55.6, None]
    assert not any(gbps for device, gbps in own.items() if not device.startswith("GPU"))
    assert not any(rates(machine, [Measured("pcie", 55.0, "x", "mlx5_0")])[i].measured_gbps
                   for i in range(len(found)))  # fmt: skip
    lines = [line for line in rate_lines(found) if "PCIe 5 x16" in line]
    assert [line.split("  ")[0] for line in lines] == ["GPU0-4, GPU6", "GPU5", "GPU7, mlx5_0-7"]
    assert "55-55.6      87%" in lines[0]
    assert "27      43%" in lines[1]


def test_measured_by_bench(tmp_path):
    """Paced links are no machine's; a NIC's rate is its own."""
    record = json.loads((REPOSITORY / "records/paced_421.json").read_text())
    assert load(REPOSITORY / "records/paced_421.json").rates == []
    link = {"kind": "rdma", "rate_gbps": 48.5, "latency_ns": 1, "source": "measured"}
    record["fabric"] = [{"name": "rdma:verbs:mlx5_0", **link}]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    (one,) = load(path).rates
    assert (one.kind, one.device, one.gbps) == ("nic", "mlx5_0", 48.5)


def test_measured_belongs_to_its_device(fixture_path):
    machine = load_machine(fixture_path("h100_x8.xml"))
    found = rates(machine, [Measured("nic", 48.5, "x", "mlx5_3")])
    assert [rate.a for rate in found if rate.measured_gbps] == ["mlx5_3"]


def test_measured_whole_says_nothing_of_a_part(fixture_path):
    machine = load_machine(fixture_path("v100_x8_old.txt"))
    assert not any(r.measured_gbps for r in rates(machine, [Measured("nvlink", 120, "x")]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100000,
        '{"schema": "braid.bench/9"}',
        '{"schema": "braid.bench/1"}',
        '{"schema": "braid.gpu/1"}',
        '{"schema": "braid.gpu/1", "ranks": 2, "date": "", "results": [7]}',
        '{"schema": "braid.gpu/1", "ranks": 2, "date": "", "results": [{"op": "all_gather",'
        ' "who": "nccl", "wrong": 0, "bytes": 8, "samples_us": [0]}]}',
    ],
)
def test_bad_records(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(BadTopology, match=r"record\.json: .") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "generation"),
    [
        ("Tesla V100-PCIE-32GB", 3), ("NVIDIA A100-PCIE-40GB", 4), ("NVIDIA A10", 4),
        ("NVIDIA L20", 4), ("NVIDIA L40S", 4), ("NVIDIA RTX A6000", 4), ("NVIDIA H100 PCIe", 5),
        ("NVIDIA H20", 5), ("NVIDIA B200", 5), ("AMD Instinct MI300X", 5),
        ("NVIDIA GeForce RTX 4090", 4), ("NVIDIA GB200", None), ("something", None), ("", None),
    ],
)  # fmt: skip
def test_the_slot_of_a_model(model, generation):
    assert tables.pcie_of_model(model) == generation


def test_gpus_joined_by_pcie_alone_have_the_rate_of_their_model():
    """nvidia-smi topo -m tells no PCIe link: nothing was said of two A100 PCIe."""
    bare = Machine(Source("nvidia-smi"), gpus=[Gpu("GPU0", "NVIDIA A100-PCIE-40GB")])
    (rate,) = rates(bare)
    assert (rate.kind, rate.basis, rate.theoretical_gbps) == ("pcie", "assumed", 31.508)
    linked = replace(bare, gpu_links=[GpuLink("GPU0", SWITCH, "nvlink", 12)])
    assert [rate.kind for rate in rates(linked)] == ["nvlink"]
    assert rates(replace(bare, gpus=[Gpu("GPU0", "unheard of")])) == []
