"""`braid run`: the environment that ranks get, and how ranks that fail, hang or are interrupted
end.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from braid.cli import main

BRAID = [sys.executable, "-m", "braid.cli"]


def braid_run(*arguments, **options):
    """Runs the command to its end."""
    return subprocess.run(
        [*BRAID, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
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


def test_modules_and_programs():
    done = braid_run("run", "-n", "2", "-m", "platform")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert braid_run("run", "-n", "2", "--", "/bin/sh", "-c", "exit 7").returncode == 7


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_grandchildren(script, tmp_path, number):
    path = script(GRANDCHILD + "time.sleep(60)")
    with subprocess.Popen([*BRAID, "run", "-n", "2", path, str(tmp_path / "pid")]) as job:
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
    with subprocess.Popen([*BRAID, "run", "-n", "2", path, str(tmp_path)]) as launcher:
        end = time.monotonic() + 30
        while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
            assert time.monotonic() < end, "ranks do not start"
            time.sleep(0.02)
        launcher.send_signal(number)
        assert launcher.wait(30) == 128 + number
    assert (tmp_path / "stopped0").exists()
    assert (tmp_path / "stopped1").exists()


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
    while _is_alive(pid):
        assert time.monotonic() < end, "the rank outlives its launcher"
        time.sleep(0.05)


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"  # nobody may be there to collect it


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
