"""check_layers finds what it exists for: includes that go up, and foreign headers out of place."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_layers import ALLOWED, check  # noqa: E402


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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("src__base__a_h", '#include "sys/fd.h"', "base may include nothing, not sys/fd.h"),
        ("src__plan__a_cc", '#include "fabric/probe.h"', "plan may include base, fabric/types.h"),
        ("src__transport__rdma__a_cc", '#  include "plan/plan.h"', "transport may include"),
        ("src__group__a_cc", '#include "store.h"', "write the folder"),
        ("src__odd__a_cc", '#include "base/log.h"', "folder odd has no row"),
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
