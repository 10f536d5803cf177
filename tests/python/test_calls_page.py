"""docs/calls.md: its examples run, and it has a section for every call."""

import re
from pathlib import Path

from braid.collectives import Collectives
from braid.messages import Messages
from braid.objects import Objects
from braid.rooted import Rooted

PAGE = Path(__file__).parents[2] / "docs/calls.md"


def test_examples_run_on_three_ranks(ranks):
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    assert program.count("assert") > 12

    def body():
        exec(compile(program, str(PAGE), "exec"), {})

    ranks.collect(ranks.start(3, body))


def test_the_program_in_c_is_the_example():
    """Which tests/bindings builds and runs on two ranks."""
    program = re.search(r"^```c\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert program is not None
    example = PAGE.parents[1] / "examples/05_all_reduce.c"
    assert example.read_text().split(" */\n", 1)[1] == program[1]


def test_every_call_is_told():
    text = PAGE.read_text()
    calls = [
        name
        for layer in (Rooted, Collectives, Messages, Objects)
        for name in vars(layer)
        if not name.startswith("_") and name not in ("rank", "size")
    ]
    assert len(calls) == 17
    for name in [*calls, "split"]:
        assert re.search(rf"^`{name}\(|^## .*\b{name}\b|`{name}\(", text, re.M), name
