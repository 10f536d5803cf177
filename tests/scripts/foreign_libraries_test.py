"""What is missing to build braid is said in one line with Debian's packages, or is not needed."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def configure(build, *options):
    """What cmake says of this tree, and its exit code."""
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", build, "-DBRAID_BUILD_TESTS=OFF", "-DBRAID_CUDA=OFF", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_all_that_is_missing_is_one_line(tmp_path):
    without = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("nlohmann_json", "OpenSSL")]
    code, said = configure(tmp_path, *without)
    assert code != 0
    assert "braid cannot be built: there is no nlohmann-json, OpenSSL." in said
    assert "On Debian: apt-get install nlohmann-json3-dev libssl-dev" in said
    assert "CMake Error" not in said.split("CMake Error", 2)[-1]


def test_each_part_names_its_package(tmp_path):
    packages = {
        "spdlog": "libspdlog-dev",
        "nlohmann_json": "nlohmann-json3-dev",
        "GTest": "libgtest-dev libgmock-dev",
        "Python": "python3-dev",
    }
    options = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in packages]
    code, said = configure(tmp_path, "-DBRAID_BUILD_PYTHON=ON", "-DBRAID_BUILD_TESTS=ON", *options)
    assert code != 0
    assert f"apt-get install {' '.join(packages.values())}" in said


def test_libfabrics_headers_may_be_missing(tmp_path):
    code, said = configure(tmp_path, "-DBRAID_LIBFABRIC_INCLUDE=OFF", "-DBRAID_UNITY=OFF")
    assert code == 0
    assert "RDMA by libfabric: off (no rdma/fi_endpoint.h;" in said
    assert "apt-get install libfabric-dev" in said
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    folder = ROOT / "src/sys/fabric"
    files = {Path(entry["file"]) for entry in commands}
    assert folder / "without_headers.cc" in files
    assert folder / "real.cc" not in files
