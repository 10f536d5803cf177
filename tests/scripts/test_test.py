"""What `scripts/test` says of a step that failed: what failed stands at the end of the log."""

import shutil
import subprocess
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]

OUTPUT = """\
[       OK ] Shares.AddUp (3 ms)
tests/coll/x_test.cc:12: Failure
Expected equality of these values: 41, 42
[  FAILED  ] Shares.AreRight (12 ms)
[  FAILED  ] Shares.AreRight
ERROR: AddressSanitizer: heap-use-after-free on address 0x1
FAILED tests/python/test_x.py::test_y - AssertionError: rank 3
"""


def ends_of(tmp_path: Path, code: int) -> tuple[int, str, str]:
    """Runs the script with a step of our own: exit code, all its output, what follows the steps."""
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts/test"
    shutil.copy(TREE / "scripts/test", script)
    (tmp_path / "output").write_text(OUTPUT, encoding="utf-8")
    text = script.read_text(encoding="utf-8")
    ours = f"step_check() {{ cat output; return {code}; }}\n"
    script.write_text(text.replace("step_check() { scripts/check --fast; }\n", ours))
    ran = subprocess.run([script, "check"], capture_output=True, text=True, timeout=60, check=False)
    _, _, after = ran.stdout.partition("=== check: ")
    return ran.returncode, ran.stdout, after


def test_what_failed_is_said_again_at_the_end(tmp_path: Path) -> None:
    code, output, after = ends_of(tmp_path, 1)
    assert code == 1
    assert OUTPUT in output
    assert after.startswith("FAILED (exit 1)")
    for line in (
        "tests/coll/x_test.cc:12: Failure",
        "Expected equality of these values: 41, 42",
        "[  FAILED  ] Shares.AreRight",
        "ERROR: AddressSanitizer: heap-use-after-free on address 0x1",
        "FAILED tests/python/test_x.py::test_y - AssertionError: rank 3",
    ):
        assert line in after.splitlines()
    assert "Shares.AddUp" not in after
    assert after.endswith("test: FAILED: check\n")


def test_a_step_that_passed_is_not_said_again(tmp_path: Path) -> None:
    code, output, after = ends_of(tmp_path, 0)
    assert code == 0
    assert OUTPUT in output
    assert "Shares" not in after
    assert after.endswith("test: all steps passed (check)\n")
