"""Two stages over several nodes against one ring: bytes, times, what limits, and the command."""

import json

import pytest
from typer.testing import CliRunner

from braid.cli.plan import app
from braid.plan import stages
from braid.plan.formulas import nodes
from braid.plan.wrong import PlanError

MIB, GIB = 1 << 20, 1 << 30
SIZES = [MIB, 8 * MIB, 64 * MIB, GIB]
NDR = stages.parse_nics("8@400Gbit/s")


def asked(op="all_gather", count=2, per_node=8, nics=NDR, inside=stages.INSIDE_GBPS):
    """A question."""
    return stages.Stages(op, count, per_node, nics, inside)


@pytest.mark.parametrize(
    ("text", "count", "gbps"),
    [("8@400Gbit/s", 8, 50), ("1@800Mbit/s", 1, 0.1), ("4@50GB/s", 4, 50), ("2@200G", 2, 25)],
)
def test_nics_are_a_count_and_a_rate(text, count, gbps):
    assert stages.parse_nics(text) == stages.Nics(count, pytest.approx(gbps))


@pytest.mark.parametrize("text", ["8", "8@", "@400Gbit/s", "0@1GB/s", "8@fast", "8@400", "x@4GB/s"])
def test_what_is_no_set_of_nics_is_named(text):
    with pytest.raises(PlanError, match="--nics"):
        stages.parse_nics(text)


@pytest.mark.parametrize("op", nodes.STAGED_OPS)
@pytest.mark.parametrize("count", [2, 4, 16])
def test_a_byte_crosses_once(op, count):
    """As often as nodes need it; straight as often as ranks do, in a ring in between."""
    staged = nodes.staged_cable_bytes(op, count, 8, GIB)
    assert nodes.flat_cable_bytes(op, count, 8, GIB) == 8 * staged
    assert staged < nodes.ring_cable_bytes(op, count, 8, GIB) < 8 * staged


def test_one_node_has_no_cable():
    for schedule in nodes.SCHEDULES:
        assert getattr(nodes, f"{schedule}_cable_bytes")("all_gather", 1, 8, GIB) == 0


def test_large_calls_in_pieces_gain_and_one_after_the_other_they_lose():
    for count in (2, 4, 8):
        question = asked(count=count)
        assert question.staged_us(GIB) < question.ring_us(GIB) < question.serial_us(GIB)


def test_few_nics_limit_and_then_bytes_are_all():
    """One 400G NIC for a node of 8: the ratio is that of bytes on it, 1.875 for two nodes."""
    question = asked(nics=stages.parse_nics("1@400Gbit/s"))
    assert question.limit(GIB) == "NIC"
    assert question.ring_us(GIB) / question.staged_us(GIB) == pytest.approx(1.875, rel=0.03)


def test_never_less_than_the_bytes_take():
    for op in nodes.STAGED_OPS:
        for size in SIZES:
            question = asked(op=op)
            cable = nodes.staged_cable_bytes(op, 2, 8, size) / NDR.node_gbps / 1e3
            assert question.staged_us(size) > cable


def test_the_command_says_all_of_it():
    run = CliRunner().invoke(
        app, ["nodes", "--nodes", "2", "--nics", "1@800Mbit/s", "-n", "4", "--json"]
    )
    assert run.exit_code == 0, run.output
    document = json.loads(run.output)
    text = json.dumps(document)
    assert "staged_cable" in text
    assert "limits" in text


def test_what_has_no_stages_is_refused():
    with pytest.raises(PlanError, match="broadcast"):
        asked(op="broadcast").check()
    with pytest.raises(PlanError, match="--nodes"):
        asked(count=1).check()


def test_every_column_is_told():
    answer = stages.report(asked(), [1 << 20, 1 << 30])
    told = " ".join(answer.notes)
    for column in answer.rows[0].cells:
        assert f"{column}:" in told, column
    for row in answer.rows:
        assert row.note in told
