"""Warnings: each on a machine that deserves it, and none on one that is well."""

from dataclasses import replace

import pytest

from braid.topo.facts import Gpu, GpuLink, Machine, Nic, Numa, Path, PeerAccess, Source
from braid.topo.look import View
from braid.topo.read import load, read_text, with_model
from braid.topo.read.live import read_tree
from braid.topo.roles import roles
from braid.topo.verdicts import names, verdicts


def codes(machine):
    return {verdict.code: verdict for verdict in verdicts(machine)}


def test_well(box, fixture_path):
    assert codes(read_tree(box().root)).keys() == set()
    assert codes(load(fixture_path("h100_x8.xml"))).keys() == set()
    assert codes(load(fixture_path("p5en_x8.xml"))).keys() == set()


def test_narrow_link(box):
    """The second GPU sits in a slot with 8 lanes of generation 4."""
    said = codes(read_tree(box(gpu_link=(4, 8)).root))
    assert said["pcie-width"].text == "GPU1: PCIe x8 of x16"
    assert said["pcie-width"].level == "warning"
    assert said["pcie-speed"].level == "note"  # it may be idle


def test_access_control(box):
    said = codes(read_tree(box(control=0x1D).root))["acs"]
    assert said.devices == ["0000:15:01.0", "0000:85:01.0"]
    assert "and 1 more" in said.text


def test_access_control_that_may_not_be_read(box, server, fixture_path):
    """Without root, configuration space ends before it: nothing was said of that."""
    fake_sys = box()
    for file in fake_sys.root.rglob("config"):
        file.write_bytes(file.read_bytes()[:64])
    said = codes(read_tree(fake_sys.root))["acs-unknown"]
    assert said.level == "note"
    assert said.text.startswith("ACS could not be read at the 8 bridges above GPUs and NICs")
    assert "lspci -vvv | grep ACSCtl" in said.fix
    assert "0000:15:01.0" in said.devices
    # One device has no peer, and a source that has no place for it did not fail to look.
    one = replace(read_tree(server.root), gpus=[], nics=[])
    assert "acs-unknown" not in codes(one)
    assert "acs-unknown" not in codes(load(fixture_path("h200_vm_x8.xml")))


def test_broken(fixture_path):
    said = codes(load(fixture_path("broken_x4.txt")))
    assert {"nvlink-missing", "nvlink-uneven", "nvlink-partial", "peer-path"} <= said.keys()
    assert said["nvlink-missing"].devices == ["GPU2"]
    assert "GPU2 has 10, GPU3 has 0, the others have 12" in said["nvlink-uneven"].text


def test_frontend(fixture_path):
    said = codes(load(fixture_path("h200_vm_x8.xml")))
    assert "eth0, 10 Gbit/s" in said["frontend"].text


def test_frontend_among_backend(fixture_path):
    said = codes(load(fixture_path("h800_x8.txt")))["frontend-rdma"]
    assert said.devices == ["mlx5_bond_0"]
    assert said.fix == "NCCL_IB_HCA=^=mlx5_bond_0"


def test_far_nics(fixture_path):
    said = codes(load(fixture_path("l20_x8.txt")))["nic-far"]
    assert said.devices == ["GPU2", "GPU3", "GPU6", "GPU7"]
    assert "NODE" in said.text


def test_small_groups(fixture_path):
    said = codes(load(fixture_path("mi300x_x8.txt")))
    assert "64 of 448 GB/s" in said["small-groups"].text


def test_cut_up(fixture_path):
    assert codes(load(fixture_path("a100_mig_x2.txt")))["mig"].devices == ["GPU0"]


def test_model_unknown(fixture_path):
    machine = load(fixture_path("h100_x8.txt"))
    assert "model-unknown" in codes(machine)
    assert "model-unknown" not in codes(with_model(machine, "h100"))


def test_no_gpu(server):
    assert codes(read_tree(server.root)).keys() == {"no-gpu"}


def pair(**parts):
    gpus = [Gpu("GPU0"), Gpu("GPU1")]
    return Machine(Source("live"), gpus=gpus, paths=[Path("GPU0", "GPU1", "PHB")], **parts)


def test_peers():
    assert codes(pair()).keys() == set()
    refused = pair(peers=[PeerAccess("GPU0", "GPU1", "ok", "chipset")])
    assert "chipset" in codes(refused)["no-p2p"].text
    assert codes(replace(pair(), paths=[]))["peer-path"].devices == ["GPU0", "GPU1"]


def test_iommu_and_gaps():
    assert "iommu" in codes(pair(iommu=True))
    assert codes(replace(pair(), source=Source("live", gaps=["x"])))["gap"].level == "note"


def test_links_down():
    down = pair(gpu_links=[GpuLink("GPU0", "GPU1", "nvlink", 17, inactive=1)])
    assert "1 of 18 NVLinks are down" in codes(down)["nvlink-down"].text


def test_down_nic():
    nics = [Nic("mlx5_0", "infiniband", gbit=400, is_up=False)]
    machine = replace(pair(nics=nics), paths=[*pair().paths, Path("GPU0", "mlx5_0", "PIX")])
    assert "nic-down" in codes(machine)


def test_roles():
    """A DGX: one NIC by each GPU, a storage NIC, a front-end NIC that can RDMA too, management."""
    nics = [
        Nic("mlx5_0", "infiniband", gbit=400),
        Nic("mlx5_1", "infiniband", gbit=400),
        Nic("mlx5_2", "roce", gbit=200),
        Nic("mlx5_3", "roce", gbit=200, has_default_route=True),
        Nic("eno1", "ethernet", gbit=1),
        Nic("ens9", "ethernet", gbit=25),
    ]
    paths = [Path("GPU0", "mlx5_0", "PIX"), Path("GPU1", "mlx5_1", "PXB")]
    paths += [Path("GPU0", nic.name, "NODE") for nic in nics[2:]]
    found = roles(View(replace(pair(nics=nics), paths=paths)))
    assert list(found.values()) == [
        "backend",
        "backend",
        "storage",
        "frontend",
        "out-of-band",
        "frontend",
    ]


def test_speed_decides_where_nobody_is_near():
    nics = [Nic("rdmap0", gbit=100), Nic("rdmap1", gbit=100), Nic("rdmap2", gbit=25)]
    found = roles(View(pair(nics=nics)))
    assert list(found.values()) == ["backend", "backend", "storage"]


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([], ""),
        (["GPU0"], "GPU0"),
        (["GPU0", "GPU1"], "GPU0, GPU1"),
        (["GPU0", "GPU1", "GPU2", "GPU5", "mlx5_0"], "GPU0-2, GPU5, mlx5_0"),
        ([f"a{i}" for i in range(0, 20, 2)], "a0, a2, a4, ... (10 devices)"),
        (["CPU", "x9999999999999999999"], "CPU, x9999999999999999999"),
    ],
)
def test_names(devices, text):
    assert names(devices) == text


def with_memory(gpu_gib, *node_gib):
    return Machine(
        Source("live"),
        numa=[Numa(i, "0-7", gib) for i, gib in enumerate(node_gib)],
        gpus=[Gpu("GPU0", "NVIDIA H200", memory_gib=gpu_gib)],
    )


def test_less_host_memory_than_a_gpu_has():
    """A virtual machine with 9.1 GiB beside GPUs of 140 GiB was reported so."""
    said = codes(with_memory(140.4, 5.0, 4.1))["host-memory"]
    assert said.level == "note"
    assert "9.1 GiB of memory, less than one GPU's 140.4 GiB" in said.text
    for enough in (with_memory(140.4, 100.0, 41.0), with_memory(None, 1.0), with_memory(8.0, None)):
        assert "host-memory" not in codes(enough)


def b200(storage=(1, 2, 7, 8)):
    """Eight GPUs, each with a NIC below its switch, and four more NICs, by nvidia-smi."""
    own = [i for i in range(12) if i not in storage]
    nics = [f"NIC{i}" for i in range(12)]
    names = [*(f"GPU{i}" for i in range(8)), *nics]

    def cell(a, b):
        if a == b:
            return "X"
        if a[0] == b[0] == "G":
            return "NV18"
        gpu, nic = (a, b) if a[0] == "G" else (b, a)
        if gpu[0] == "G" and own.index(int(nic[3:])) == int(gpu[3:]) if int(nic[3:]) in own else 0:
            return "PXB"
        return "NODE"

    lines = ["\t" + "\t".join(names)]
    lines += ["\t".join([a, *(cell(a, b) for b in names)]) for a in names]
    return "\n".join([*lines, "", *(f"  NIC{i}: mlx5_{i}" for i in range(12))]) + "\n"


def test_names_that_begin_alike_are_not_excluded():
    """NCCL takes a name for all that begin so: mlx5_1 would be mlx5_10 and mlx5_11 as well."""
    said = codes(read_text(b200()))["frontend-rdma"]
    assert said.devices == ["mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"]
    assert said.fix.split()[0] == "NCCL_IB_HCA=^=mlx5_1,mlx5_2,mlx5_7,mlx5_8"


def test_a_nic_that_a_gpu_needs_is_not_excluded():
    """GPU1 shares a switch with none: the nearest of its node is its own, and no storage."""
    head = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tNUMA Affinity\n"
    rows = (
        "GPU0 X SYS SYS PIX SYS SYS 0\nGPU1 SYS X NODE SYS NODE SYS 1\n"
        "GPU2 SYS NODE X SYS NODE PIX 1\n"
        "NIC0 PIX SYS SYS X SYS SYS\nNIC1 SYS NODE NODE SYS X NODE\nNIC2 SYS SYS PIX SYS NODE X\n"
    )
    machine = read_text(head + rows)
    assert "frontend-rdma" not in codes(machine)
    assert set(roles(View(machine)).values()) == {"backend"}


def test_eighteen_links_are_of_two_models():
    assert (
        "450 GB/s a GPU (Hopper); Blackwell has 900"
        in codes(read_text(b200()))["model-unknown"].text
    )


def test_a_model_that_is_told_and_not_known():
    links = [GpuLink("GPU0", "GPU1", "xgmi", 3)]
    gpus = [Gpu(f"GPU{i}", "AMD Instinct MI100", arch="gfx908") for i in range(2)]
    said = codes(Machine(Source("nccl"), gpus=gpus, gpu_links=links))["model-unknown"]
    assert "the links of AMD Instinct MI100 are not known; rates are left out" in said.text
    assert said.fix == ""
