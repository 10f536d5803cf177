"""`braid topo` as a user runs it: output, exit codes, help, completion, time."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braid.cli import app
from braid.topo.document import document, to_json
from braid.topo.read import live, load
from braid.topo.show import matrix, tables, tree

REPOSITORY = Path(__file__).parents[3]
BRAID = [sys.executable, "-m", "braid.cli"]


def braid(*arguments, **environment):
    """Runs the command in a process of its own."""
    return subprocess.run(
        [*BRAID, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def topo(capsys, monkeypatch):
    """Runs `braid topo` in this process: exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["braid", "topo", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            app.main()
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


def test_all_views(topo, fixture_path):
    code, out, _ = topo("--from", fixture_path("h100_x8.txt"), "--gpu", "h100")
    assert code == 0
    for part in ("NV18", "NIC Legend"[:3], "├─ NUMA node 0", "GB/s", "warning: mlx5_4, mlx5_5"):
        assert part in out
    assert "GPU0-7   NVLink 4, 18 links to NVSwitch   450     900    3600  370.8" in out


def test_m_is_the_matrix_alone(topo, fixture_path):
    _, out, _ = topo("-m", "--from", fixture_path("h100_x8.xml"))
    assert "NV18" in out
    assert "GB/s" not in out


def test_nothing_to_say_is_said(topo, tmp_path):
    """Views without a line printed an empty one."""
    path = tmp_path / "m.txt"
    path.write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    _, out, _ = topo("--from", path, "--show", "rates")
    assert out.startswith("No link's rate is known")
    _, out, _ = topo("--from", path, "--gpu", "a100", "--show", "rates,verdicts")
    assert "PCIe 4 x16, by the model  31.5" in out
    path.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    _, out, _ = topo("--from", path, "--gpu", "a100", "--show", "verdicts")
    assert out.rstrip() == "no warnings"


def test_a_gpu_is_named_that_the_source_may_have(topo, tmp_path):
    path = tmp_path / "m.txt"
    for kind, said in (("XGMI", "name it: --gpu mi300x"), ("PCIE", "try --gpu mi300x")):
        path.write_text(f"LINK TYPE TABLE:\n   GPU0  GPU1\nGPU0  0  {kind}\nGPU1  {kind}  0\n")
        _, out, _ = topo("--from", path)
        assert said in out
    assert topo("--from", path, "--gpu", "mi300x")[0] == 0


def test_chosen_views_and_words(topo, fixture_path):
    _, out, _ = topo("--from", fixture_path("h100_x8.xml"), "--show", "matrix", "--words", "nccl")
    assert "PXN" in out
    assert "GB/s" not in out
    _, out, _ = topo("--from", fixture_path("h100_x8.xml"), "--show", "rates,tree")
    assert out.index("Rate of each") < out.index("└─ NVSwitch")


def test_json_alone_on_stdout(topo, fixture_path, tmp_path):
    code, out, err = topo(
        "--from", fixture_path("p5_x8.xml"), "--json", "--svg", tmp_path / "a.svg",
        "--html", tmp_path / "a.html",
    )  # fmt: skip
    assert code == 0
    assert not err
    assert json.loads(out)["schema"] == "braid.topo/1"
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert "<main>" in (tmp_path / "a.html").read_text()


def test_record(topo, fixture_path):
    record = REPOSITORY / "records/gpu_large_2.json"
    code, out, _ = topo("--from", fixture_path("version_1.json"), "--record", record)
    assert code == 0
    assert "measured: NCCL all_gather" in out
    code, _, err = topo("--from", fixture_path("h800_x8.txt"), "--record", record)
    assert code == 2
    assert "a record of NVIDIA H200, the machine has NVIDIA H800" in err


def test_several_records(topo, fixture_path):
    records = [REPOSITORY / f"records/{name}.json" for name in ("p2p_4", "gpu_large_2")]
    asked = [part for record in records for part in ("--record", record)]
    code, out, _ = topo("--from", fixture_path("h200_vm_x8.xml"), *asked)
    assert code == 0
    assert "GPU0-3" in out
    assert "390.2-391.1      87%" in out
    assert "\nGPU1  391.5      -  389.9  391.1\n" in out
    assert "measured: NCCL all_gather" in out


@pytest.mark.parametrize("name", ["engine_2", "replay_2", "tp_block_70b_4", "bench_host", "p2p_4"])
def test_a_record_that_measured_no_link(topo, fixture_path, tmp_path, name):
    record = json.loads((REPOSITORY / f"records/{name}.json").read_text())
    if name == "p2p_4":
        record["kind"] = "something"
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    code, out, err = topo("--from", fixture_path("h200_vm_x8.xml"), "--record", path)
    assert (code, out) == (2, "")
    assert "record.json: nothing in it measured a link of this machine" in err
    assert err.count("\n") == 1


def of_pairs(tmp_path, change):
    """A record of pairs in which `change` was done to every series."""
    document = json.loads((REPOSITORY / "records/p2p_4.json").read_text())
    for one in document["series"]:
        change(one)
    path = tmp_path / "p2p.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("gbps", [-5, 0, float("nan"), float("inf")])
def test_a_rate_that_nobody_measured(topo, fixture_path, tmp_path, gbps):
    path = of_pairs(tmp_path, lambda one: one.update(gbps=gbps))
    code, out, err = topo("--from", fixture_path("h200_vm_x8.xml"), "--record", path)
    assert (code, out) == (2, "")
    assert "record.series[0].gbps: asked for a " in err
    assert err.count("\n") == 1


def test_a_time_that_nobody_measured(topo, fixture_path, tmp_path):
    path = of_pairs(tmp_path, lambda one: one["times"].update(p50_us=-1))
    code, _, err = topo("--from", fixture_path("h200_vm_x8.xml"), "--record", path)
    assert code == 2
    assert "record.series[0].times.p50_us: asked for a number above 0, found -1" in err


def test_a_rate_far_above_the_specified_is_a_warning(topo, fixture_path, tmp_path):
    path = of_pairs(tmp_path, lambda one: one.update(gbps=one["gbps"] and 4000.0))
    asked = ("--from", fixture_path("h200_vm_x8.xml"), "--record", path, "--check")
    code, out, _ = topo(*asked)
    assert code == 1
    assert "4000 GB/s were measured, NVLink 4 has 450" in out
    asked = (*asked[:3], REPOSITORY / "records/p2p_4.json")
    assert "were measured," not in topo(*asked)[1]


def test_check(topo, fixture_path):
    assert topo("--from", fixture_path("h100_x8.xml"), "--check")[0] == 0
    assert topo("--from", fixture_path("broken_x4.txt"), "--check")[0] == 1


def test_diff(topo, fixture_path):
    a, b = fixture_path("h100_x8.xml"), fixture_path("h100_x8.txt")
    assert topo("diff", a, a)[:2] == (0, "no difference\n")
    code, out, _ = topo("diff", a, b)
    assert code == 1
    assert "PCI address" in out
    code, out, _ = topo("diff", a, b, "--json")
    assert {"what", "a", "b"} == json.loads(out)[0].keys()


def test_live(topo):
    """This machine, whatever it is, in two seconds."""
    began = time.perf_counter()
    machine = live.read()
    document(machine)
    assert time.perf_counter() - began < 2
    code, out, _ = topo()
    assert code == 0
    assert machine.gpus or "there is no GPU" in out


def test_a_matrix_of_nothing_says_so(topo, fake_sys):
    """It was an empty line."""
    fake_sys.intel()
    fake_sys.numa(0, "0-1", 16, 0)
    nic = fake_sys.pci("pci0000:00", "0000:00:03.0", code="0x020000", vendor="0x1af4")
    fake_sys.net("eth0", nic, 1000)
    assert topo("--from", fake_sys.root, "-m")[:2] == (0, "no matrix: there is no GPU\n")


def test_folder(topo, server):
    code, out, _ = topo("--from", server.root)
    assert code == 0
    assert "frontend" in out


@pytest.mark.parametrize(
    "content", ["", "hello", "<system", "{", "No devices were found\n", "\x00\xff"]
)
def test_bad_files(topo, tmp_path, content):
    path = tmp_path / "bad"
    path.write_text(content)
    for arguments in (("--from", path), ("diff", path, path)):
        code, out, err = topo(*arguments)
        assert code == 2
        assert not out
        assert err.startswith(f"braid: {path}: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "/nowhere"), "/nowhere: No such file"),
        (("--from", "/dev/zero"), "/dev/zero: more than 64 MiB"),
        (("--from", "/etc"), "the folder has no sys/ in it"),
        (("--show", "everything"), "'everything' is no view; braid has matrix, tree"),
        (("--words", "amd"), "asked for nvidia or nccl, found 'amd'"),
        (("--record", "/nowhere"), "/nowhere: No such file"),
        (("--svg", "/proc/x.svg"), "/proc/x.svg"),
        (("--what",), "No such option"),
    ],
)
def test_bad_arguments(topo, arguments, said):
    code, _, err = topo(*arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_standard_input(fixture_path):
    with fixture_path("h100_x8.txt").open() as file:
        done = subprocess.run(
            [*BRAID, "topo", "--from", "-"], stdin=file, capture_output=True, check=False
        )
    assert done.returncode == 0
    assert b"NV18" in done.stdout


def test_poor_terminals(fixture_path):
    """One without the characters that a tree is drawn with, and one that stops to listen."""
    done = braid("topo", "--from", fixture_path("h100_x8.xml"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "NVSwitch" in done.stdout
    assert "|- NUMA node 0" in done.stdout
    assert "?" not in done.stdout
    command = f"{sys.executable} -m braid.cli topo --from {fixture_path('p5_x8.xml')} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_bad_file_in_a_process(tmp_path):
    path = tmp_path / "cut.xml"
    path.write_text('<system version="1"><cpu>')
    done = braid("topo", "--from", path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the XML is cut off or damaged" in done.stderr


def test_help(topo):
    code, out, _ = topo("--help")
    assert code == 0
    for part in ("Example:", "GB/s", "one direction", "Exit code", "--from", "--record", "diff"):
        assert part in " ".join(out.split())


def test_completion():
    """What bash asks when the user presses the tabulator."""
    asked = {"_BRAID_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    assert braid(COMP_WORDS="braid topo d", **asked).stdout.split() == ["diff"]
    assert "--from" in braid(COMP_WORDS="braid topo --f", **asked).stdout.split()


def test_needs_no_compiled_module(fixture_path):
    """Whoever looks at a saved machine needs neither the C++ part nor a GPU."""
    program = (
        "import sys; sys.modules['braid._braid'] = None\n"
        f"sys.argv = ['braid', 'topo', '--from', {str(fixture_path('h100_x8.xml'))!r}]\n"
        "from braid.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_offline_time(saved):
    """From file to every view in less than 0.3 s of this process, best of three: others use this
    machine too.
    """

    def once():
        began = time.process_time()
        whole = document(load(saved))
        to_json(whole)
        for lines in (matrix.lines(whole.machine), tree.lines(whole.machine)):
            assert lines is not None
        tables.rate_lines(whole.derived.links)
        return time.process_time() - began

    assert min(once() for _ in range(3)) < 0.3
