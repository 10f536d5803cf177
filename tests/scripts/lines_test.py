"""What stands twice is counted once for each time that it comes again."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from lines import RUN, again, shape, significant

A = [f"do this {n}" for n in range(RUN + 2)]
B = [f"else {n}" for n in range(4)]


def test_a_run_that_was_there_before_counts_whole():
    assert again([A, B + A + B]) == RUN + 2
    assert again([A, B + A[:RUN], A[1 : RUN + 1]]) == 2 * RUN


def test_less_than_a_run_is_none():
    assert again([A, A[: RUN - 1]]) == 0


def test_a_line_that_repeats_itself_is_no_copy_of_others():
    assert again([["same"] * RUN]) == 0
    assert again([["same"] * RUN, ["same"] * RUN]) == RUN


def test_what_says_nothing_is_passed_over():
    text = "// why\n\nint a = 1;\n}\n#include <map>\nimport os\n  return   a;\n"
    assert significant(text) == ["int a = 1;", "return a;"]


def test_names_and_numbers_are_no_part_of_a_shape():
    assert shape('f(a, 12, "b c")') == shape("g(x1, 0x7f, 'd')")
