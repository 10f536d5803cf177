"""nccl-tests' words in a line of `braid bench`, taken as ours; docs/bench.md has both side by side.

`braid bench all_reduce_perf --minbytes 8 -e 1G --ngpus 4` is `braid bench --ops all_reduce -b 8
-e 1G -g 4`. Short options are the same where both have them, but for -n, which means iterations
there and ranks here: where the line may be nccl-tests', it is refused.
"""

import re

from braid.cli.checks import our_op
from braid.errors import InvalidArgument
from braid.plan.formulas.collectives import COLLECTIVES

OURS = {
    "--minbytes": "-b",
    "--maxbytes": "-e",
    "--stepbytes": "-i",
    "--stepfactor": "-f",
    "--ngpus": "-g",
    "--agg_iters": "-m",
    "--warmup_iters": "-w",
    "--datatype": "-d",
}
"""Long names that nccl-tests alone has. --iters, --check, --op, --root, --cudagraph are both's."""
NOT_HERE = {
    ("-t", "--nthreads"): "ranks are processes here; write -g with the number of all GPUs",
    ("-p", "--parallel_init"): "ranks always start side by side; leave it out",
    ("-z", "--blocking"): "calls always run back to back on a stream; leave it out",
    ("-a", "--average"): "the slowest rank's time counts; --by-rank shows each",
    ("-N", "--run_cycles"): "write --iters for more samples",
    ("-R", "--local_register"): "results are registered; --variants unregistered has the others",
    ("-T",): "write --timeout 30s",
    ("-J", "-F", "--output_file"): "write --json FILE, which has a form of its own",
}
"""What nccl-tests has and braid has not, and what to write."""
_RANKS = re.compile(r"-n(\d*)")


def take(line: list[str]) -> None:
    """Rewrites a command line of `braid bench` itself; others are left alone. InvalidArgument, in
    one line, for what cannot be meant as it stands.
    """
    if line[1:2] != ["bench"] or len(line) < 3:
        return
    program = line[2] if our_op(line[2]) in COLLECTIVES else ""
    if not program and not line[2].startswith("-"):
        return  # a command of its own
    is_theirs = program.endswith("_perf") or any(_name(word) in OURS for word in line[3:])
    _refuse(line[2:], is_theirs=is_theirs)
    if program:
        line[2:3] = ["--ops", our_op(program)]
    line[2:] = [part for word in line[2:] for part in _ours(word)]


def _name(word: str) -> str:
    return word.partition("=")[0]


def _ours(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    if name not in OURS:
        return [word]
    return [OURS[name], value] if equals else [OURS[name]]


def _refuse(words: list[str], *, is_theirs: bool) -> None:
    for names, why in NOT_HERE.items():
        for name in map(_name, words):
            short = name[:2] if re.fullmatch(r"-\w\d+", name) else name
            if short in names:
                raise InvalidArgument(f"bench: {short} of nccl-tests is not here: {why}")
    count = _count_of_n(words)
    has_gpus = any(re.fullmatch(r"-g\d*|--ngpus", _name(word)) for word in words)
    if count is not None and (is_theirs or has_gpus):
        raise InvalidArgument(
            "bench: -n means iterations to nccl-tests and ranks to braid;"
            f" write --iters {count}, or --ranks {count}".rstrip()
        )


def _count_of_n(words: list[str]) -> str | None:
    """What is behind -n, if it is there."""
    for i, word in enumerate(words):
        if match := _RANKS.fullmatch(word):
            return match[1] or "".join(words[i + 1 : i + 2])
    return None
