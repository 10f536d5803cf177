"""check_alone finds what it exists for: a file that leans on what another one included."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_alone  # noqa: E402
import sources  # noqa: E402

COMMAND = "ccache c++ -DX=1 -std=c++20 -Isrc -O3 -o src/a.o -c src/a/a.cc"
UNIT = "#pragma once\ninline constexpr int kUnit = 4;\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source file that uses kUnit, of a header that it does not include itself."""
    (tmp_path / "src" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    forget()
    write("unit.h", UNIT)
    write("a.h", "#pragma once\nint a();\n")
    write("a.cc", '#include "a/a.h"\n\n#include <vector>\n\nint a() { return kUnit; }\n')
    write("b.cc", '#include "a/unit.h"\n\nint b() { return kUnit; }\n')
    yield tmp_path
    forget()


def forget():
    """What was read of files that are written anew."""
    sources.includes.cache_clear()
    sources.foreign_includes.cache_clear()
    sources.reads.cache_clear()


def write(name: str, text: str) -> Path:
    path = Path("src/a", name)
    path.write_text(text)
    return path


GCC = check_alone.Compiler("g++")


@pytest.mark.usefixtures("tree")
def test_a_missing_include_is_found_where_both_as_one_would_compile():
    found = check_alone.errors(GCC, Path("src/a/a.cc"), COMMAND)
    assert "src/a/a.cc does not compile alone" in found
    assert "kUnit" in found
    assert check_alone.errors(GCC, Path("src/a/b.cc"), COMMAND) == ""
    both = write("both.cc", '#include "src/a/b.cc"\n#include "src/a/a.cc"\n')
    assert check_alone.errors(GCC, both, COMMAND) == ""


@pytest.mark.usefixtures("tree")
def test_a_header_that_leans_on_what_comes_before_it_is_found():
    late = write("late.h", "#pragma once\ninline std::vector<int> none() { return {}; }\n")
    write("late.cc", '#include <vector>\n\n#include "a/late.h"\n')
    write("text_body.h", "this is no file of its own")
    assert check_alone.all_headers() == [Path("src/a", n) for n in ("a.h", "late.h", "unit.h")]
    assert check_alone.errors(GCC, Path("src/a/late.cc"), COMMAND) == ""
    assert "does not compile alone" in check_alone.errors(GCC, late, COMMAND)


@pytest.fixture
def wide_tree(tree):
    """Ten files that include a long header, and one that uses what is in it and does not."""
    write(
        "long.h", "#pragma once\n#include <vector>\n" + "// long\n" * 20_000 + "struct Long {};\n"
    )
    write("middle.h", '#pragma once\n#include "a/long.h"\n')
    for i in range(10):
        write(f"use{i}.cc", f'#include "a/middle.h"\n\nLong use{i}();\n')
    write("leans.cc", '#include "a/a.h"\n\nLong leans();\n')
    return tree


@pytest.mark.usefixtures("wide_tree")
def test_what_is_handed_to_a_file_it_includes_itself():
    files = [path for path in Path("src/a").iterdir() if path.suffix == ".cc"]
    chosen = check_alone.worth_precompiling(files)
    assert {file.name for file in chosen} == {f"use{i}.cc" for i in range(10)}
    assert set(chosen.values()) == {frozenset({'"src/a/long.h"', '"src/a/middle.h"', "<vector>"})}
    for file, includes in chosen.items():
        assert includes <= check_alone.included(file)


@pytest.mark.usefixtures("wide_tree")
def test_what_is_precompiled_hides_nothing(tmp_path):
    clang = shutil.which("clang++-19")
    if not clang:
        pytest.skip("needs clang++-19")
    compiler = check_alone.Compiler(clang, can_precompile=True)
    files = sorted(path for path in Path("src/a").iterdir() if path.suffix == ".cc")
    with ThreadPoolExecutor(2) as pool:
        before = check_alone.precompiled(compiler, dict.fromkeys(files, COMMAND), tmp_path, pool)
    assert {file.name for file, made in before.items() if made} == {f"use{i}.cc" for i in range(10)}
    write("use3.cc", '#include "a/middle.h"\n\nShort use3();\n')
    found = {f.name for f in files if check_alone.errors(compiler, f, COMMAND, before.get(f))}
    assert found == {"a.cc", "leans.cc", "use3.cc"}


@pytest.mark.usefixtures("tree")
def test_files_that_no_build_compiles_here_and_headers_get_a_command_too():
    write("without_headers.cc", "int c();\n")
    work = check_alone.all_to_compile({Path("src/a/a.cc"): COMMAND})
    names = ("a.cc", "b.cc", "without_headers.cc", "a.h", "unit.h")
    assert set(work) == {Path("src/a", name) for name in names}


def test_flags_are_those_of_the_command_without_its_file_and_its_optimisation():
    assert sources.flags(COMMAND) == ["-DX=1", "-std=c++20", "-Isrc"]


def test_what_was_clean_is_looked_at_again_when_a_header_of_its_headers_changes(tree):
    (tree / "clean").mkdir()
    write("b.cc", '#include "a/middle.h"\n')
    write("middle.h", '#include "a/unit.h"\n')
    clean = sources.Clean(tree / "clean")

    def stamp():
        forget()
        return clean.stamp(Path("src/a/b.cc"), COMMAND)

    first = stamp()
    assert stamp() == first
    write("a.h", "int other();\n")
    assert stamp() == first
    write("unit.h", UNIT.replace("4", "5"))
    assert stamp() != first
    assert clean.stamp(Path("src/a/b.cc"), COMMAND + " -Dother") != stamp()
