"""Published models: parameters and KV cache of each against what its checkpoint holds.

fixtures/plan/checkpoints.json has the shapes of their config.json as known to us; the elements that
transformers' module of these shapes holds, or where transformers has none those of the published
checkpoint (a matrix that both ends share counts once; what sees, and layers that predict further
tokens, are left out); and by hand the bytes of one token's keys and values in bf16 and the layers
that look back at a window alone.
"""

import json
from pathlib import Path

import pytest

from braid.plan.basis import Basis
from braid.plan.config import from_config
from braid.plan.families import FAMILIES

FILE = Path(__file__).parent.parent / "fixtures" / "plan" / "checkpoints.json"
ROWS = {row["name"]: row for row in json.loads(FILE.read_text(encoding="utf-8"))}
ALSO = {  # tested by the sums of test_families.py, or another name of a family that is here
    "Yi", "ministral", "ministral3", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl_text",
    "qwen3_vl_text", "qwen3_vl_moe_text", "olmo3", "granitemoeshared", "granitemoehybrid", "bamba",
    "glm", "glm4", "glm4v_text", "glm4v_moe_text", "glm4_moe_lite", "ernie4_5", "arcee", "apertus",
    "helium", "hunyuan_v1_dense", "minimax_m1", "dots1", "qwen3_5_text", "qwen3_5_moe_text",
    "minimax", "xlm-roberta", "vaultgemma",
    "camembert", "RefinedWeb", "RefinedWebModel", "mllama_text_model",
}  # fmt: skip


def model(name):
    return from_config(ROWS[name]["config"], name, "a test")


@pytest.mark.parametrize("name", ROWS)
def test_parameters_to_the_last_one(name):
    found = model(name)
    assert found.parameters == ROWS[name]["parameters"]
    assert (found.basis, found.warnings) == (Basis.EXACT, ())


@pytest.mark.parametrize("name", ROWS)
def test_a_token_s_keys_and_values(name):
    assert 2 * model(name).cache_elements_per_token == ROWS[name]["kv_bytes"]


@pytest.mark.parametrize("name", ROWS)
def test_layers_with_a_window(name):
    found, row = model(name), ROWS[name]
    assert found.widest_window == row["window"]
    windowed = [layer for layer in found.stack if layer.mixer.window]
    assert len(windowed) == row["window_layers"]
    each = row["kv_bytes"] // found.layers if windowed else 0
    assert 2 * found.windowed_elements_per_token == each * len(windowed)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-4-Scout", 17.17), ("Llama-4-Maverick", 17.18), ("Mixtral-8x7B", 12.88),
        ("DeepSeek-V3", 37.55), ("Kimi-K2", 32.86), ("gpt-oss-120b", 5.71), ("GLM-4.5", 33.63),
        ("Qwen3-235B-A22B", 22.19), ("DBRX", 36.47), ("Jamba-v0.1", 12.11),
    ],
)  # fmt: skip
def test_what_a_token_passes_through(name, billions):
    assert model(name).active_parameters / 1e9 == pytest.approx(billions, abs=0.006)


def test_every_family_has_a_sum_that_is_tested():
    kinds = {_kind(row["config"]) for row in ROWS.values()}
    assert set(FAMILIES) - kinds == ALSO


def test_the_docs_name_every_family():
    said = (FILE.parents[4] / "docs" / "plan.md").read_text(encoding="utf-8")
    assert [kind for kind in FAMILIES if f"`{kind}`" not in said] == ["mllama_text_model"]


def _kind(config):
    return config.get("text_config", config)["model_type"]


def test_a_sequence_s_cache_fills_windows_and_goes_on_elsewhere():
    """Gemma 3 27B: 52 of 62 layers keep 1024 tokens; 16 KV heads of 128."""
    found = model("Gemma-3-27B text")
    assert found.cache_elements(1000) == 1000 * 62 * 4096
    assert found.cache_elements(32768) == (10 * 32768 + 52 * 1024) * 4096


def test_recurrent_layers_keep_a_state_instead():
    """Jamba: 28 layers, each with 4 inputs of a convolution and 16 states of 8192 channels."""
    found = model("Jamba-v0.1")
    assert found.state_elements == 28 * 8192 * (4 + 16)
    assert found.cache_elements(1000) == 1000 * 4 * 2 * 8 * 128
