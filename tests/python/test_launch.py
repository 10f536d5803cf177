"""`braid run`: the environment that ranks get, and how ranks that fail, hang or are interrupted
end.
"""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from braid import launch
from braid.cli import main

BRAID = [sys.executable, "-m", "braid.cli"]


def braid_run(*arguments, **options):
    """Runs the command to its end."""
    return subprocess.run(
        [*BRAID, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.fixture
def script(tmp_path):
    """Writes a rank's program and returns its path."""

    def write(text):
        path = tmp_path / "rank.py"
        path.write_text("import os, sys, time, signal\n" + text)
        return str(path)

    return write


def test_environment_and_arguments(script):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT BRAID_JOB_TOKEN"
    # One write per rank: lines of ranks that share a pipe must not mix.
    path = script(
        f"words = [*[os.environ[n] for n in '{names}'.split()], *sys.argv[1:]]\n"
        "os.write(1, (' '.join(words) + '\\n').encode())"
    )
    done = braid_run("run", "-n", "3", path, "--flag", "-n", "7")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[0] for row in rows] == [row[2] for row in rows] == ["0", "1", "2"]
    for row in rows:
        assert row[1] == row[3] == "3"
        assert row[4] == "127.0.0.1"
        assert row[7:] == ["--flag", "-n", "7"]
    assert len({(row[5], row[6]) for row in rows}) == 1
    assert len(rows[0][6]) >= 32


OUTER_RANK = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_PORT": "1",
    "GROUP_RANK": "1",
    "ROLE_WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "outer",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_MCA_ess_base_jobid": "1",
    "PMI_RANK": "5",
    "PMI2_JOBID": "1",
    "PMIX_NAMESPACE": "outer",
}
OWN = {"RANK", "WORLD_SIZE", "MASTER_PORT"}
SETTINGS = {"ROLE_NAME", "GROUP_ID", "OMPI_MCA_btl", "PMIX_MCA_gds", "SLURM_JOB_ID", "SLURM_PROCID"}


def test_ranks_hear_nothing_of_a_launcher_around_their_own(script):
    """Whose rank the launcher itself is. What its user has set, and Slurm's job, stay."""
    path = script("os.write(1, (' '.join(os.environ) + '\\n').encode())")
    around = {**os.environ, **OUTER_RANK, **dict.fromkeys(SETTINGS, "7")}
    done = braid_run("run", "-n", "2", path, env=around)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert set(line.split()) & ({*OUTER_RANK} | SETTINGS) == OWN | SETTINGS


def test_ranks_meet_inside_a_rank_of_mpirun(script):
    path = script(
        "import braid\n"
        "with braid.init() as comm:\n"
        "    comm.barrier()\n"
        "    assert (comm.rank, comm.size) == (int(os.environ['RANK']), 2)\n"
    )
    outer = {name: text for name, text in OUTER_RANK.items() if name.startswith(("OMPI_", "PMI"))}
    done = braid_run("run", "-n", "2", path, env={**os.environ, **outer, "BRAID_TUNE": "off"})
    assert done.returncode == 0, done.stderr


def test_torch_meets_inside_a_rank_of_torchrun(script):
    """Where torchrun keeps torch's store, ranks of another launcher would look for it in vain."""
    pytest.importorskip("torch")
    path = script(
        "from datetime import timedelta\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=timedelta(seconds=40))\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    outer = {name: text for name, text in OUTER_RANK.items() if name.startswith("TORCHELASTIC_")}
    done = braid_run("run", "-n", "2", path, env={**os.environ, **outer})
    assert done.returncode == 0, done.stderr


def test_modules_and_programs():
    done = braid_run("run", "-n", "2", "-m", "platform")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert braid_run("run", "-n", "2", "--", "/bin/sh", "-c", "exit 7").returncode == 7


def test_a_signal_without_a_name(script):
    path = script("os.kill(os.getpid(), 35) if os.environ['RANK'] == '1' else time.sleep(60)")
    done = braid_run("run", "-n", "2", "--grace", "0.2", path)
    assert done.returncode == 128 + 35
    assert done.stderr == "braid run: rank 1 was killed by signal 35; ending the other 1\n"


TERMINAL = """
import errno, termios
termios.tcsetattr(2, termios.TCSADRAIN, termios.tcgetattr(2))
terminal = os.open("/dev/tty", os.O_RDWR)
try:
    os.read(terminal, 1)
except OSError as error:
    os.write(2, errno.errorcode[error.errno].encode())
os.write(2, b" input:" + sys.stdin.buffer.read())
"""


def test_a_rank_that_touches_the_terminal_goes_on(script):
    """It is in the terminal's background, and stopped it would wait for ever."""
    line = [*BRAID, "run", "-n", "1", script(TERMINAL)]
    launcher, terminal = pty.fork()
    if launcher == 0:
        os.execv(line[0], line)
    said, end_at = b"", time.monotonic() + 30
    with suppress(OSError):  # a terminal that nobody has any more
        while select.select([terminal], [], [], max(end_at - time.monotonic(), 0))[0]:
            said += os.read(terminal, 1000)
    os.close(terminal)  # hangs up on whoever is left
    _, status = os.waitpid(launcher, 0)
    assert (os.waitstatus_to_exitcode(status), said) == (0, b"EIO input:")


def test_a_parent_that_collects_no_children(script):
    """Ignored SIGCHLD is inherited, and what ends is then gone without a word."""
    path = script("sys.exit(3 * (os.environ['RANK'] == '1'))")
    done = braid_run("run", "-n", "2", path, preexec_fn=ignoring(signal.SIGCHLD))
    assert "rank 1 exited with code 3" in done.stderr
    assert done.returncode == 3


def ignoring(number):
    """For a process that is to start with a signal ignored."""
    return lambda: signal.signal(number, signal.SIG_IGN)


def test_a_failure_nobody_can_hear_of_leaves_the_others_their_grace(script, tmp_path):
    path = script(
        "if os.environ['RANK'] == '1': sys.exit(7)\n"
        "time.sleep(1)\n"
        "open(sys.argv[1] + '/finished', 'w').close()\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    command = [*BRAID, "run", "-n", "2", "--grace", "60", path, str(tmp_path)]
    done = subprocess.run(command, stderr=writer, timeout=60, check=False)
    os.close(writer)
    assert (tmp_path / "finished").exists()
    assert done.returncode == 7


def test_what_fails_later_is_not_called_a_start(monkeypatch):
    def wait(_job):
        raise OSError("of waiting")

    monkeypatch.setattr(launch.Job, "wait", wait)
    monkeypatch.setattr(sys, "argv", ["braid", "run", "--", "/bin/true"])
    with pytest.raises(OSError, match="of waiting"):
        main()


def test_first_failure_ends_the_others(script):
    path = script("sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)")
    start = time.monotonic()
    done = braid_run("run", "-n", "3", "--grace", "0.2", path)
    assert done.returncode == 3
    assert time.monotonic() - start < 20
    assert "rank 1 exited with code 3; ending the other 2" in done.stderr


def lives(pid):
    """Whether there is such a process, and it has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


GRANDCHILD = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '300'])\n"
    "with open(sys.argv[1] + os.environ['RANK'], 'w') as f: f.write(str(child.pid))\n"
)


def grandchildren(folder):
    """Their process numbers, once both ranks have written them."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        texts = [path.read_text() for path in folder.glob("pid*")]
        if len(texts) == 2 and all(texts):
            return [int(text) for text in texts]
        time.sleep(0.02)
    raise AssertionError("no grandchildren")


def heed_signals():
    """In a process that is about to start: though the tests were started with some ignored (nohup,
    or in the background of a script).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_grandchildren(script, tmp_path, number):
    path = script(GRANDCHILD + "time.sleep(60)")
    command = [*BRAID, "run", "-n", "2", path, str(tmp_path / "pid")]
    with subprocess.Popen(command, preexec_fn=heed_signals) as job:
        pids = grandchildren(tmp_path)
        job.send_signal(number)
        assert job.wait(timeout=20) == 128 + number
    assert not [pid for pid in pids if lives(pid)]


def test_a_failure_ends_grandchildren(script, tmp_path):
    """Also those of the rank that failed, which has gone by then."""
    path = script(GRANDCHILD + "sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)")
    done = braid_run("run", "-n", "2", "--grace", "0.2", path, str(tmp_path / "pid"))
    assert done.returncode == 3
    assert not [pid for pid in grandchildren(tmp_path) if lives(pid)]


def test_stubborn_ranks_are_killed(script):
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '0' else time.sleep(60)"
    )
    done = braid_run("run", "-n", "2", "--grace", "0.5", path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 was killed by SIGKILL" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_every_rank(script, tmp_path, number):
    path = script(
        "def stop(n, _):\n"
        "    open(f'{sys.argv[1]}/stopped{os.environ[\"RANK\"]}', 'w').close()\n"
        "    sys.exit(0)\n"
        f"signal.signal({int(number)}, stop)\n"
        "open(f'{sys.argv[1]}/ready{os.environ[\"RANK\"]}', 'w').close()\n"
        "time.sleep(60)"
    )
    command = [*BRAID, "run", "-n", "2", path, str(tmp_path)]
    with subprocess.Popen(command, preexec_fn=heed_signals) as launcher:
        end = time.monotonic() + 30
        while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
            assert time.monotonic() < end, "ranks do not start"
            time.sleep(0.02)
        launcher.send_signal(number)
        assert launcher.wait(30) == 128 + number
    assert (tmp_path / "stopped0").exists()
    assert (tmp_path / "stopped1").exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_an_ignored_signal_stays_ignored(script, tmp_path, number):
    """As nohup has it, and what a script starts in the background."""
    path = script(
        "folder = sys.argv[1]\n"
        "open(f'{folder}/ready', 'w').close()\n"
        "end = time.monotonic() + 60\n"
        "while not os.path.exists(f'{folder}/go'):\n"
        "    assert time.monotonic() < end\n"
        "    time.sleep(0.02)\n"
    )
    command = [*BRAID, "run", "-n", "1", path, str(tmp_path)]
    with subprocess.Popen(command, preexec_fn=ignoring(number)) as launcher:
        until((tmp_path / "ready").exists, "the rank does not start")
        launcher.send_signal(number)
        (tmp_path / "go").touch()
        assert launcher.wait(30) == 0


def until(holds, otherwise):
    """Waits, not for ever."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


STOPPED_WHILE_STARTING = """
import os, sys, time
from braid import launch

folder, number = sys.argv[1], int(sys.argv[2])
become_rank = launch._become_rank

def stop_the_launcher_first(*launcher):
    with open(f"{folder}/{os.getpid()}", "w"):
        parent = os.getppid()
    if len(os.listdir(folder)) == 2:
        os.kill(parent, number)
        end = time.monotonic() + 1
        while os.getppid() == parent and time.monotonic() < end:
            time.sleep(0.01)
    become_rank(*launcher)

launch._become_rank = stop_the_launcher_first
sys.exit(launch.launch(["sleep", "300"], 4))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_launcher_stopped_while_it_starts_ranks_leaves_none(tmp_path, number):
    """The second is a process by then, and has not yet asked to end with the launcher."""
    command = [sys.executable, "-c", STOPPED_WHILE_STARTING, str(tmp_path), str(int(number))]
    with subprocess.Popen(command, preexec_fn=heed_signals) as launcher:
        code = launcher.wait(60)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    try:
        until(lambda: not any(lives(pid) for pid in pids), "a rank outlives its launcher")
    finally:
        for pid in filter(lives, pids):
            os.kill(pid, signal.SIGKILL)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert len(pids) == 2  # no more were started


def test_ranks_end_with_their_launcher(script, tmp_path):
    path = script("open(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)")
    pid_file = tmp_path / "pid"
    with subprocess.Popen([*BRAID, "run", "-n", "1", path, str(pid_file)]) as launcher:
        end = time.monotonic() + 30
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < end, "the rank does not start"
            time.sleep(0.02)
        launcher.kill()
    pid = int(pid_file.read_text())
    until(lambda: not lives(pid), "the rank outlives its launcher")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-n", "2", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "-n", "2", "./nowhere"], "cannot be started"),
        (["run", "-n", "0", "x.py"], "asked for 0"),
        (["run", "-n", "65", "x.py"], "1 to 64"),
        (["bench", "--sizes", "64XB"], "'64XB' is no size"),
        (["bench", "--sizes", "8:4:x2"], "is no range"),
        (["bench", "-b", "1M", "-e", "1K"], "is no range"),
        (["bench", "-b", "1M", "-f", "1"], "is no range"),
        (["bench", "-b", "1M", "--sizes", "1M"], "write one of them"),
        (["bench", "--ops", "all_gather,scatter"], "'scatter' is no operation"),
        (["bench", "--dtype", "float31"], "'float31'"),
        (["bench", "--op", "xor"], "'xor'"),
        (["bench", "--against", "mpi"], "'mpi' is no baseline"),
        (["bench", "--iters", "0"], "at least 1"),
        (["explain", "scatter", "64MiB"], "'scatter'"),
        (["demo", "--size", "big"], "'big' is no size"),
    ],
)
def test_wrong_arguments_are_one_line(monkeypatch, capfd, arguments, words):
    monkeypatch.setattr(sys, "argv", ["braid", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capfd.readouterr()
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_a_process_says_the_same():
    done = braid_run("run", "-n", "0", "x.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_braid_errors_are_one_line():
    done = braid_run("bench", "-n", "2", "--links", "warp")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "warp" in done.stderr


def test_version_and_options():
    assert braid_run("--version").stdout.startswith("braid 0.")
    listed = braid_run("options").stdout
    assert "BRAID_TIMEOUT  duration, default 30s" in listed
    assert "BRAID_JOB_TOKEN" in listed
