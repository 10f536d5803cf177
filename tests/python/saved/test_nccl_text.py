"""Tables of nccl-tests: every version's columns, and what is missing or does not fit."""

import random

import pytest
from saved_tables import average, of_2020, of_2026, us_of

from braid.saved import nccl_text, table

SIZES = [1 << 10, 1 << 20, 1 << 26]


def document(text, source="run.txt"):
    return table.document(nccl_text.read(text), source)


def runs(found, who="nccl"):
    """(op, total bytes, us) of one way."""
    return [
        (result["op"], result["total_bytes"], run["median_us"])
        for result in found["results"]
        for run in result["runs"]
        if run["who"] == who
    ]


@pytest.mark.parametrize("make", [of_2020, of_2026])
@pytest.mark.parametrize(
    ("program", "op"),
    [
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("broadcast", "broadcast"),
    ],
)
def test_every_operation_of_either_age(make, program, op):
    found = document(make(program, SIZES))
    assert runs(found) == [(op, n, us_of(n)) for n in SIZES]
    assert runs(found, "nccl in place") == [(op, n, us_of(n, in_place=True)) for n in SIZES]
    assert found["ranks"] == 4
    assert found["stopped"] == ""


def test_busbw_is_computed_from_the_time_and_agrees_with_the_column():
    (result,) = document(of_2026("all_reduce", [1 << 26], ranks=8))["results"]
    busbw = result["runs"][0]["busbw_gbps"]
    assert busbw == pytest.approx((1 << 26) / us_of(1 << 26) / 1e3 * 1.75, abs=1e-3)


def test_parts_and_types_are_as_in_our_records():
    (result,) = document(of_2026("all_gather", [1 << 20]))["results"]
    assert (result["bytes"], result["total_bytes"]) == (1 << 18, 1 << 20)
    assert (result["dtype"], result["mode"], result["calls_per_sample"]) == (
        "bfloat16",
        "eager",
        25,
    )
    (old,) = document(of_2020("all_reduce", [1 << 20]))["results"]
    assert (old["bytes"], old["dtype"]) == (1 << 20, "float32")


def test_where_it_ran():
    found = document(of_2026("all_reduce", SIZES, graph=20))
    assert (found["gpu"], found["nccl"]) == ("NVIDIA H100 80GB HBM3", "2.30.4")
    assert found["settings"]["nccl-tests"] == "2.19.6"
    assert {result["mode"] for result in found["results"]} == {"graph"}
    assert document(of_2020("all_reduce", SIZES))["command"].startswith(
        "./build/all_reduce_perf -b"
    )
    old = of_2020("all_reduce", SIZES).replace(
        "#\n#   Rank", "NCCL version 2.8.3+cuda11.2\n#   Rank"
    )
    assert document(old)["nccl"] == "unknown"
    assert document("NCCL version 2.8.3+cuda11.2\n" + old)["nccl"] == "2.8.3"
    assert document("NCCL version 2.8.3+cuda11.2\n" + old)["cuda"] == "11.2"


def test_several_hosts_are_said():
    assert document(of_2026("all_reduce", SIZES, hosts=2))["host"]["num_hosts"] == 2


def test_spread_of_iterations_and_time_of_day():
    found = document(of_2026("all_reduce", SIZES, spread=True, times=True))
    assert runs(found) == [("all_reduce", n, us_of(n)) for n in SIZES]
    assert [run["p99_us"] for result in found["results"] for run in result["runs"]] == [88.5] * 6


@pytest.mark.parametrize("times", [False, True])
def test_a_column_of_operations_may_be_empty(times):
    """As hypercube prints it."""
    text = of_2026("alltoall", SIZES, times=times)
    blank = text.replace("  none  ", "        ")
    assert blank != text
    assert runs(document(blank)) == runs(document(text))


def test_hypercube_counts_what_goes_over_links():
    """22.08 us for 512 bytes, of which 256 are another rank's."""
    text = of_2026("alltoall", [512], ranks=2).replace("  none  ", "        ")
    us = f"{us_of(512):.2f}"
    words = text.split(us)
    algbw = words[1].split()[0]
    half = f"{float(algbw) / 2:.2f}"
    assert runs(document(us.join([words[0], words[1].replace(algbw, half, 1), *words[2:]])))
    with pytest.raises(ValueError, match="mixed up"):
        document(us.join([words[0], words[1].replace(algbw, "0.00", 1), *words[2:]]))


def test_output_tagged_by_mpirun():
    tagged = "\n".join(f"[1,0]<stdout>: {x}" for x in of_2026("all_reduce", SIZES).splitlines())
    assert runs(document(tagged)) == [("all_reduce", n, us_of(n)) for n in SIZES]


def test_cycles_are_samples():
    """-N 3 prints every size three times."""
    text = of_2026("all_reduce", [1 << 20, 1 << 20, 1 << 20])
    slower = text.replace(f"{us_of(1 << 20):.2f}", f"{us_of(1 << 20) + 0.05:.2f}", 1)
    (result,) = document(slower)["results"]
    us = us_of(1 << 20)
    assert result["runs"][0]["samples_us"] == [us, us, pytest.approx(us + 0.05)]
    assert result["runs"][0]["median_us"] == us


def test_wrong_values_are_counted_in_bytes():
    (result,) = document(of_2026("all_reduce", [1 << 20], wrong="3"))["results"]
    assert [run["wrong"] for run in result["runs"]] == [6, 6]
    (unchecked,) = document(of_2026("all_reduce", [1 << 20], wrong="N/A"))["results"]
    assert [run["wrong"] for run in unchecked["runs"]] == [0, 0]
    (old,) = document(of_2020("all_reduce", [1 << 20], failed=2))["results"]
    assert all(run["wrong"] for run in old["runs"])


def test_several_tables_in_one_file():
    both = of_2026("all_reduce", SIZES) + "\n" + of_2026("all_gather", SIZES[:2])
    found = document(both)
    assert [op for op, _, _ in runs(found)] == ["all_reduce"] * 3 + ["all_gather"] * 2
    assert found["command"] == "all_reduce_perf_mpi; all_gather_perf_mpi"


def test_operation_by_columns_where_nothing_names_it():
    bare = [x for x in of_2020("all_reduce", SIZES, ranks=8).splitlines() if not x.startswith("$")]
    assert {op for op, _, _ in runs(document("\n".join(bare)))} == {"all_reduce"}
    bare = [x for x in of_2020("all_gather", SIZES).splitlines() if not x.startswith("$")]
    with pytest.raises(ValueError, match="which collective"):
        document("\n".join(bare))
    named = document("\n".join(bare), "h100_all_gather.log")
    assert {op for op, _, _ in runs(named)} == {"all_gather"}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_all_reduce_tells_its_ranks_where_the_list_is_gone(ranks):
    lines = of_2026("all_reduce", SIZES, ranks=ranks).splitlines()
    assert document("\n".join(x for x in lines if "Rank" not in x))["ranks"] == ranks
    lines = of_2026("all_gather", SIZES).splitlines()
    with pytest.raises(ValueError, match="# Rank"):
        document("\n".join(x for x in lines if "Rank" not in x))


def test_what_is_missing_is_said():
    assert "rows are missing" in document(of_2026("all_reduce", SIZES, cut=1))["stopped"]
    cut = of_2026("all_reduce", SIZES).partition("# Out of bounds")[0]
    assert "did not end" in document(cut)["stopped"]
    assert average(SIZES, 4, "all_reduce") in of_2026("all_reduce", SIZES)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  0\n", "\n", "13 columns|columns, the head has"),
        ("time  algbw  busbw", "cputime  algbw  busbw", "no time, algbw and busbw"),
        ("bfloat16  sum  -1", "bfloat16  sum  xx", "no root"),
        (f"{us_of(1 << 20):.2f}", "0.00", "line 13: 0.00 us"),
        (f"{us_of(1 << 20):.2f}", "17.00", "columns are mixed up"),
        ("all_reduce_perf", "sendrecv_perf", "braid has all_reduce"),
        (f"{1 << 20:12}", f"{1 << 70:12}", "bytes"),
    ],
)
def test_what_does_not_fit_is_one_line(old, new, complaint):
    text = of_2026("all_reduce", SIZES)
    assert old in text
    with pytest.raises(ValueError, match=complaint) as error:
        document(text.replace(old, new))
    assert "\n" not in str(error.value)


def test_tables_of_different_ranks_are_refused():
    both = of_2026("all_reduce", SIZES) + "\n" + of_2026("all_gather", SIZES, ranks=8)
    with pytest.raises(ValueError, match="4 and 8 ranks"):
        document(both)


def complaint(text):
    """Why a text is refused; nothing else than a ValueError may come."""
    try:
        tables = nccl_text.read(text)
        table.document(tables, "x")
    except ValueError as error:
        return str(error)
    return ""


def test_damaged_text_is_read_or_refused_and_nothing_else():
    chosen = random.Random(7)
    text = of_2026("all_reduce", SIZES, spread=True)
    for _ in range(300):
        place, length = chosen.randrange(len(text)), chosen.randrange(1, 40)
        damaged = text[:place] + chosen.choice(["", "9" * 30, "nan", "\n"]) + text[place + length :]
        assert "\n" not in complaint(damaged)
