"""`braid bench nodes` between CPUs: four ranks of this host that say that they are two nodes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from braid.bench.nodes.cpus import interface_to
from braid.launch import free_port
from braid.record import bench as form

LAUNCHERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
RANK = """
import os, sys
os.environ["BRAID_HOST_ID"] = "node" + str(int(os.environ["RANK"]) // 2)
from braid.cli.app import main
sys.argv = ["braid", "bench", "nodes", *sys.argv[1:]]
main()
"""


def start(*arguments: str, ranks: int = 4, program: str = RANK) -> tuple[list[int], str]:
    """Exit codes, and what all of them said."""
    port = str(free_port())
    running = []
    for rank in range(ranks):
        known = {
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "BRAID_JOB_TOKEN": "of this test", "BRAID_TUNE": "off", "BRAID_TIMEOUT": "30s",
            "BRAID_RDMA_ADDRS": "127.0.0.1",
        }  # fmt: skip
        command = [sys.executable, "-c", program, *arguments]
        running.append(
            subprocess.Popen(
                command, env={**os.environ, **known}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    said = [one.communicate(timeout=120)[0] for one in running]
    return [one.returncode for one in running], "\n".join(said)


def test_a_record_of_stages_beside_gloo(tmp_path: Path) -> None:
    """Every operation, every byte right, as `braid report` reads it."""
    pytest.importorskip("torch")
    path = tmp_path / "nodes.json"
    codes, said = start("--sizes", "64KiB", "--samples", "3", "--json", str(path), "--quiet")
    assert codes == [0, 0, 0, 0], said
    record = form.load(path)
    assert [result.op for result in record.results] == [
        "all_gather",
        "reduce_scatter",
        "all_reduce",
    ]
    assert record.host.num_hosts == 2
    assert record.ranks == 4
    for result in record.results:
        assert result.baseline is not None
        assert result.baseline.name == "gloo"
        assert (result.wrong_bytes, result.baseline.wrong_bytes) == (0, 0)
        # Over several nodes there are links of a node's own behind those that lead to everyone.
        assert {link.name for link in result.links} >= {"shm", "staged"}, result.links
    page = tmp_path / "page.html"
    made = subprocess.run(
        [sys.executable, "-m", "braid.cli", "report", str(path), "--out", str(page)], check=False
    )
    assert made.returncode == 0
    assert "reduce_scatter" in page.read_text(encoding="utf-8")


SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NODEID=$((rank / 2)) \\
    BRAID_HOST_ID=node$((rank / 2)) "$@" &
  all="$all $!"
done
for one in $all; do wait "$one" || code=1; done
exit ${code:-0}
"""


def test_the_batch_file(tmp_path: Path) -> None:
    """examples/launch/bench_nodes.sbatch with stand-ins for srun and scontrol."""
    pytest.importorskip("torch")
    own = shutil.which("braid", path=str(Path(sys.executable).parent))
    if own is None:
        pytest.skip("the command braid is not beside this Python")
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho 127.0.0.1\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    known = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "BRAID": own, "BRAID_TUNE": "off",
        "BRAID_RDMA_ADDRS": "127.0.0.1", "SLURM_JOB_NODELIST": "here",
        "SLURM_JOB_ID": str(free_port()), "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NNODES": "2",
    }  # fmt: skip
    clean = {name: text for name, text in os.environ.items() if name not in LAUNCHERS}
    batch = Path(__file__).parents[2] / "examples" / "launch" / "bench_nodes.sbatch"
    done = subprocess.run(
        ["bash", str(batch), "--device", "cpu", "--sizes", "64KiB", "--samples", "2", "--quiet"],
        env={**clean, **known}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = form.load(tmp_path / f"braid-nodes-{known['SLURM_JOB_ID']}.json")
    assert (record.ranks, record.host.num_hosts) == (4, 2)


def test_it_starts_no_ranks() -> None:
    """Exit code 2 and one line outside of a launch; and where all ranks are on one node."""
    clean = {name: text for name, text in os.environ.items() if name not in LAUNCHERS}
    command = [sys.executable, "-m", "braid.cli", "bench", "nodes"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "srun, torchrun, mpirun" in done.stderr
    codes, said = start("--against", "none", ranks=2)
    assert codes == [2, 2], said
    assert "are on 1 node" in said


def test_the_interface_on_the_way() -> None:
    """Loopback is the way to this host."""
    assert interface_to("127.0.0.1") == "lo"
    assert json.dumps(interface_to("no such host.")) == '""'
