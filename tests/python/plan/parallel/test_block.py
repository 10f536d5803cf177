"""A rank's part of a block: shapes counted by hand, and its time as a sum."""

import pytest

from braid.plan import models
from braid.plan.parallel.block import ATTENTION, MLP, Shape, block_us
from braid.plan.wrong import PlanError


def test_llama3_70b_on_two_ranks():
    shape = Shape.of(models.find("llama3-70b"), 2, 4096)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.intermediate) == (8192, 32, 4, 14336)
    assert shape.qkv_columns == (64 + 2 * 8) * 128 // 2 == 5120
    assert shape.payload_bytes(2) == 64 << 20


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama3-405b"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_all_ranks_together_have_the_layer(name, ranks):
    model = models.find(name)
    norms = 2 * model.hidden
    shape = Shape.of(model, ranks, 16)
    assert shape.parameters * ranks == model.layer_parameters - norms


def test_more_ranks_than_key_heads_keep_a_copy_each():
    shape = Shape.of(models.find("llama3-8b"), 16, 1)
    assert (shape.heads, shape.kv_heads) == (2, 1)


@pytest.mark.parametrize(
    ("model", "ranks", "tokens", "said"),
    [
        ("llama3-8b", 3, 16, "32 heads do not divide over 3 ranks"),
        ("deepseek-v3", 2, 16, "try llama3-8b"),
        ("qwen3-235b-a22b", 2, 16, "dense, gated MLP"),
        ("gpt3-175b", 2, 16, "dense, gated MLP"),
        ("llama3-8b", 2, 0, "--tokens"),
        ("llama3-8b", 0, 16, "--ranks"),
    ],
)
def test_refused(model, ranks, tokens, said):
    with pytest.raises(PlanError, match=said):
        Shape.of(models.find(model), ranks, tokens)


def test_a_block_is_its_parts_two_norms_and_two_all_reduces():
    parts = {part: 10.0**i for i, part in enumerate(dict.fromkeys((*ATTENTION, *MLP)))}
    assert parts["norm"] == 1.0
    assert block_us(parts, 0.25) == 1111111 + 1 + 0.5
