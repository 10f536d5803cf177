"""check_layers finds what it exists for: includes that go up, and foreign headers out of place."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_layers import ALLOWED, IMPORTS, SUBFOLDERS, check  # noqa: E402


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_h", ".h").replace("_cc", ".cc")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_repository_is_clean() -> None:
    assert check(ROOT) == []


def test_every_folder_of_src_has_a_row() -> None:
    assert {p.name for p in (ROOT / "src").iterdir() if p.is_dir()} <= set(ALLOWED)


def test_rows_go_one_way() -> None:
    names = list(ALLOWED)
    for folder, row in ALLOWED.items():
        assert all(names.index(entry.split("/")[0]) < names.index(folder) for entry in row)


@pytest.mark.parametrize("top", SUBFOLDERS)
def test_subfolders_have_rows_that_go_one_way(top: str) -> None:
    folder = ROOT / "src" / top
    sources = [p for p in folder.rglob("*") if p.suffix in {".h", ".cc", ".cuh", ".cu"}]
    there = {p.parent.relative_to(folder).as_posix().removeprefix(".") for p in sources}
    assert there == set(SUBFOLDERS[top])
    names = list(SUBFOLDERS[top])
    for name, row in SUBFOLDERS[top].items():
        folders = [entry for entry in row if not entry.endswith(".h")]
        assert all(names.index(entry) < names.index(name) for entry in folders)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("src__base__a_h", '#include "sys/fd.h"', "base may include nothing, not sys/fd.h"),
        ("src__plan__a_cc", '#include "fabric/probe.h"', "plan may include base, fabric/types.h"),
        ("src__transport__rdma__a_cc", '#  include "plan/plan.h"', "transport may include"),
        ("src__group__a_cc", '#include "store.h"', "write the folder"),
        ("src__odd__a_cc", '#include "base/log.h"', "folder odd has no row"),
        ("src__coll__host__a_h", '#include "coll/tune/tune.h"', "host may include coll, reduce"),
        ("src__coll__packets__a_h", '#include "coll/device/a.h"', "packets may include reduce of"),
        ("src__comm__observe__a_cc", '#include "comm/comm.h"', "may include comm/device/links"),
        ("src__coll__odd__a_cc", '#include "coll/wire.h"', "folder coll/odd has no row"),
        ("src__coll__a_h", "#include <nlohmann/json.hpp>", "belongs in"),
        ("src__comm__a_cc", "#include <spdlog/spdlog.h>", "belongs in"),
        ("src__coll__a_cc", '#include "braid/braid.h"', "not braid/braid.h"),
    ],
)
def test_finds(tmp_path: Path, name: str, text: str, said: str) -> None:
    found = check(tree(tmp_path, **{name: f"// head\n{text}\n"}))
    assert len(found) == 1
    assert said in found[0]
    assert ":2: " in found[0]


def test_allows_what_the_table_allows(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        src__plan__a_h='#include "fabric/types.h"\n#include "plan/solve.h"\n#include <vector>\n',
        src__comm__a_cc='#include "transport/lane.h"\n#include <nlohmann/json.hpp>\n',
        bindings__c__a_cc='#include "braid/braid.h"\n#include "coll/wire.h"\n',
    )
    assert check(root) == []


def package(root: Path, **files: str) -> Path:
    """braid's Python with these files: `plan__work` is plan/work.py."""
    for name, text in files.items():
        path = root / "python/braid" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_part_of_the_package_has_a_row() -> None:
    top = ROOT / "python/braid"
    found = {p.name for p in top.iterdir() if p.is_dir() and p.name != "__pycache__"}
    found |= {p.stem for p in top.glob("*.py") if p.stem != "__init__"}
    assert found <= set(IMPORTS)


def test_rows_of_python_go_one_way() -> None:
    names = list(IMPORTS)
    for name, row in IMPORTS.items():
        assert all(names.index(entry) < names.index(name) for entry in row)


def test_nothing_imports_commands_or_torch_s_backend() -> None:
    for row in IMPORTS.values():
        assert not {"cli", "torch"} & set(row)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bench__a", "from braid.cli.checks import fail", "bench may import"),
        ("bench__a", "from braid.cli import checks", "not cli.checks"),
        ("probe__a", "import braid.cli.checks", "not cli.checks"),
        ("bench__host__a", "from braid import probe", "not probe"),
        ("topo__read__a", "def f():\n    from braid.bench import gpus", "not bench.gpus"),
        ("topo__a", "if TYPE_CHECKING:\n    from braid.plan.work import mfu", "not plan.work.mfu"),
        ("plan__formulas__a", "from braid.plan import hardware", "not plan.hardware"),
        ("errors", "import braid", "errors may import nothing, not braid"),
        ("record__a", "from braid.torch import group", "not torch.group"),
        ("plan__a", "from . import work", "write the whole name"),
        ("odd__a", "import os", "braid.odd.a has no row"),
        ("odd", "", "braid.odd has no row"),
    ],
)
def test_finds_imports(tmp_path: Path, name: str, text: str, said: str) -> None:
    found = check(package(tmp_path, **{name: text}))
    assert len(found) == 1
    assert said in found[0]
    assert found[0].startswith(f"python/braid/{name.replace('__', '/')}.py:")


def test_allows_imports_that_go_down(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        __init__="from braid.errors import Error",
        cli__a="import json\nfrom braid.probe import job\nfrom braid.cli.checks import fail",
        bench__a="import braid\nfrom braid import json_file, Comm\nfrom braid.record import gpu",
        plan__a="from braid.plan import shipped, work\nfrom braid.plan.formulas.rates import gbps",
    )
    assert check(root) == []
