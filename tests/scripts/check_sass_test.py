"""check_sass finds what it exists for: missing and forbidden instructions, rules for nothing."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_sass import Code, absent, asked_for, complaints, parse_codes, parse_rules, stale  # noqa: E402

DUMP = """
Fatbin elf code:
================
arch = sm_80
code version = [1,7]

\tcode for sm_80
\t\tFunction : copy_wide
\t.headerflags    @"EF_CUDA_SM80"
        /*0010*/                   LDG.E.128 R8, [R4.64] ;
\t\tFunction : copy_slow
        /*0010*/                   LDL R8, [R1] ;

Fatbin elf code:
================
arch = sm_90a

\t\tFunction : copy_wide
        /*0010*/                   LDG.E R8, [R4.64] ;
"""


def found(rules: str) -> list[str]:
    return list(complaints(parse_rules(rules), parse_codes(DUMP)))


def test_finds_every_kernel_of_every_architecture() -> None:
    names = [(c.architecture, c.kernel) for c in parse_codes(DUMP)]
    assert names == [("sm_80", "copy_wide"), ("sm_80", "copy_slow"), ("sm_90a", "copy_wide")]


def test_each_architecture_must_have_it() -> None:
    assert found(r"copy_wide: has LDG\.E\.128") == [r"copy_wide on sm_90a lacks LDG\.E\.128"]


def test_rules_for_some_architectures_leave_the_others_alone() -> None:
    assert found(r"copy_wide on sm_80: has LDG\.E\.128") == []
    assert found(r"copy_wide on sm_(90|100)a: has LDG\.E\.128") == [
        r"copy_wide on sm_90a lacks LDG\.E\.128"
    ]


def test_no_kernel_may_have_it() -> None:
    assert found(r"copy_.*: no \bLDL\b") == [r"copy_slow on sm_80 has \bLDL\b"]


def test_no_kernel_may_have_it_more_often() -> None:
    assert found(r"copy_.*: most 1 \bLDL\b") == []
    twice = DUMP.replace("LDL R8, [R1] ;", "LDL R8, [R1] ;\n LDL R9, [R1] ;")
    rules = parse_rules(r"copy_.*: most 1 \bLDL\b")
    assert list(complaints(rules, parse_codes(twice))) == [
        r"copy_slow on sm_80 has \bLDL\b 2 times, 1 at most"
    ]


def test_a_rule_for_nothing_is_an_error() -> None:
    assert found("copy: has LDG") == ["no kernel is named copy"]
    assert list(complaints([], [])) == ["no kernel found"]


@pytest.mark.parametrize("line", ["copy has LDG", "copy: LDG", "copy: has ", "copy: most LDG"])
def test_refuses_what_is_no_rule(line: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_rules(line)


def test_code_is_plain_data() -> None:
    assert parse_codes("arch = sm_80\n\t\tFunction : f\nX\n") == [Code("sm_80", "f", "X\n")]


def test_encodings_are_left_out() -> None:
    dump = "arch = sm_80\n\t\tFunction : f\n  /*0010*/  EXIT ;   /* 0x000000000000794d */\n"
    assert [code.text for code in parse_codes(dump)] == ["  /*0010*/  EXIT ;\n"]


def test_a_library_with_kernels_of_an_older_build_is_found(tmp_path: Path) -> None:
    fatbins = [tmp_path / "kernels" / name for name in ("same.fatbin", "changed.fatbin")]
    (tmp_path / "kernels").mkdir()
    (tmp_path / "libbraid.so").write_bytes(b"...kernel 1...kernel 2...")
    fatbins[0].write_bytes(b"kernel 1")
    fatbins[1].write_bytes(b"kernel 3")
    wrong = list(stale(tmp_path, fatbins))
    assert wrong == ["libbraid.so does not hold kernels/changed.fatbin as it is now"]


def test_kernels_that_only_python_calls_are_in_its_module(tmp_path: Path) -> None:
    fatbin = tmp_path / "kernels/overlap/gather.fatbin"
    fatbin.parent.mkdir(parents=True)
    fatbin.write_bytes(b"kernel 1")
    for library in ("libbraid.so", "_braid.cpython-311.so"):
        (tmp_path / library).write_bytes(b"")
    assert list(stale(tmp_path, [fatbin])) == [
        "_braid.cpython-311.so does not hold kernels/overlap/gather.fatbin as it is now"
    ]


def test_a_kernel_that_the_host_asks_for_is_compiled_for_each_architecture() -> None:
    codes = parse_codes(DUMP)
    assert list(absent({"copy_wide"}, codes)) == []
    assert list(absent({"copy_slow", "copy_wide"}, codes)) == [
        "the host asks for copy_slow, which no file has on sm_90a"
    ]


def make_program(build: Path, script: str) -> None:
    program = build / "tests/test_coll"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def noting(report: str) -> str:
    return f"echo '{report}' > \"${{2#--gtest_output=json:}}\""


def test_what_the_host_asks_for_is_what_a_test_of_the_build_notes(tmp_path: Path) -> None:
    assert asked_for(tmp_path) == (set(), "")  # a build without tests
    report = '{"testsuites": [{"testsuite": [{"kernels": "copy_wide copy_slow "}]}]}'
    make_program(tmp_path, noting(report))
    assert asked_for(tmp_path) == ({"copy_wide", "copy_slow"}, "")


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",  # before there is a report
        noting('{"testsuites": []}'),  # no test of that name
        noting('{"testsuites": [{"testsuite": [{"kernels": ""}]}]}'),
        noting('{"testsuites": [{"testsuite": [{"kernels": "copy_wide"}]}]}') + "; exit 1",
    ],
)
def test_a_test_that_notes_nothing_is_told(tmp_path: Path, script: str) -> None:
    make_program(tmp_path, f"echo 'a library is gone' >&2; {script}")
    asked, why_not = asked_for(tmp_path)
    assert asked == set()
    assert "tests/test_coll" in why_not
    assert "a library is gone" in why_not


def test_a_missing_test_program_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert "noted no kernels" in asked_for(tmp_path)[1]
