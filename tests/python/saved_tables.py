"""Tables as nccl-tests of several years prints them, of times that follow from a size: every column
can be told from the others."""

FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}
RULER = "(us)  (GB/s)  (GB/s)"


def us_of(nbytes, *, in_place=False):
    """10 us and 100 GB/s; in place 1 us more."""
    return round(10 + nbytes / 1e5 + in_place, 2)


def half(nbytes, ranks, op, last, *, in_place=False):
    """time, algbw, busbw and what the version prints behind them."""
    us = us_of(nbytes, in_place=in_place)
    factor = FACTORS[op] * (ranks - 1) / ranks if op in FACTORS else 1
    return [f"{us:.2f}", f"{nbytes / us / 1e3:.2f}", f"{nbytes / us / 1e3 * factor:.2f}", *last]


def row(nbytes, ranks, op, head, last=("0",), tail=()):
    """A line of the table."""
    both = [*half(nbytes, ranks, op, last), *half(nbytes, ranks, op, last, in_place=True)]
    return "  ".join([f"{nbytes:12}", f"{nbytes // 4:12}", *head, *both, *tail])


def average(nbytes, ranks, op):
    """Of all bus bandwidths of these sizes."""
    rates = [float(half(n, ranks, op, (), in_place=p)[2]) for n in nbytes for p in (False, True)]
    return f"{sum(rates) / len(rates):g}"


def of_2020(op, sizes, ranks=4, failed=0):
    """Columns are each program's own, the last of each half is the largest difference."""
    head = {"all_reduce": "redop", "reduce_scatter": "redop", "broadcast": "root"}.get(op, "")
    words = {"redop": ["float", "sum"], "root": ["float", "0"], "": ["float"]}[head]
    lines = [
        f"$ ./build/{op}_perf -b 8 -e 128M -f 2 -g {ranks}",
        "# nThread 1 nGpus 4 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5"
        " iters: 20 validation: 1 ",
        "#",
        "# Using devices",
        *(f"#   Rank {i:2} Pid  23445 on      dgx1 device {i:2} [0x0{i + 6}] Tesla V100-SXM2-16GB"
          for i in range(ranks)),
        "#",
        "#                                            out-of-place                       in-place",
        f"#       size         count    type  {head}    time   algbw   busbw  error"
        "     time   algbw   busbw  error",
        f"#        (B)    (elements)          {' ' * len(head)}    {RULER}           {RULER}",
        *(row(n, ranks, op, words, ("1e-07",)) for n in sizes),
        f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}",
        f"# Avg bus bandwidth    : {average(sizes, ranks, op)} ",
    ]  # fmt: skip
    return "\n".join(lines)


def of_2026(op, sizes, ranks=4, *, hosts=1, graph=0, wrong="0", spread=False, times=False, cut=0):
    """A version line, domains in addresses, counts of wrong values; with -I and with -S."""
    redop = "none" if op in ("all_gather", "alltoall") else "sum"
    words = ["bfloat16", redop, "-1"]
    columns = ["time", "algbw", "busbw", "#wrong", *(["i_min", "i_max", "i_p99", "i_cv%"] * spread)]
    last = (wrong, *(["9.00", "99.0", "88.5", "1.5"] * spread))
    tail = ("2026-07-09", "12:00:01") if times else ()
    rows = [row(n, ranks, op, words, last, tail) for n in sizes]
    lines = [
        "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=23004",
        f"# Collective test starting: {op}_perf_mpi",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1"
        f" iters: 25 agg iters: 1 validation: 1 graph: {graph} unalign: 0",
        "# Using devices",
        *(f"#  Rank {i:2} Group  0 Pid 163{i:03} on     node{i % hosts} device {i:2}"
          f" [0000:{i}b:00:00] NVIDIA H100 80GB HBM3" for i in range(ranks)),
        "#",
        "#       size         count      type   redop    root  " + "  ".join(columns * 2)
        + ("            timestamp" if times else ""),
        "node0:12:34 [0] NCCL INFO Connected all rings",
        *rows[: len(rows) - cut],
        f"# Out of bounds values : {0 if wrong in ('0', 'N/A') else 8} OK",
        f"# Avg bus bandwidth    : {average(sizes, ranks, op)} ",
        "#",
        f"# Collective test concluded: {op}_perf_mpi",
    ]  # fmt: skip
    return "\n".join(lines)
