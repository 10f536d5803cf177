"""check_words finds a coined noun, and lets plain ones and those of the glossary pass."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_words import check, noun_of  # noqa: E402


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("HostRing", "ring"),
        ("UintLanes", "lanes"),
        ("Fp8E4M3", "m"),
        ("IpcHandle", "handle"),
        ("NvlinkIPC", "ipc"),
    ],
)
def test_the_noun_is_the_last_word(name: str, noun: str) -> None:
    assert noun_of(name) == noun


def test_the_repository_is_clean() -> None:
    assert check(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src/comm").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs/glossary.md").write_text(
        "| word | meaning |\n|---|---|\n| host ring | slots |\n"
    )
    (tmp_path / "docs/words.md").write_text(
        "| word | meaning |\n|---|---|\n| window (of a peer) | a region |\n"
    )
    (tmp_path / "scripts/plain_nouns.txt").write_text("state request\n")
    return tmp_path


def test_finds_a_coined_noun(tree: Path) -> None:
    names = ("struct LinkState", "class HostRing", "struct PeerWindows", "class LinkGizmo final")
    text = "".join(f"{name} {{\n}};\n" for name in names)
    (tree / "src/comm/a.h").write_text(text)
    assert check(tree) == [
        "src/comm/a.h:7: LinkGizmo: 'gizmo' is no plain noun and has no row in docs/glossary.md"
    ]


def test_a_row_makes_it_a_word(tree: Path) -> None:
    (tree / "src/comm/a.h").write_text("class LinkGizmo {\n};\n")
    with (tree / "docs/glossary.md").open("a") as page:
        page.write("| gizmo | what it is |\n")
    assert check(tree) == []
