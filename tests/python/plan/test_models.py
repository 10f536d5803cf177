"""Models by name and from config.json."""

import dataclasses
import json

import pytest

from braid.plan import config, models, shipped
from braid.plan.wrong import PlanError

LLAMA = shipped.table("models")["llama3-70b"]["config"]


def write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return path


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.55),
        ("llama3-405b", 405.85),
        ("qwen3-235b-a22b", 235.1),
        ("deepseek-v3", 671.0),
        ("gpt3-175b", 174.6),
        ("kimi-k2", 1026),
    ],
)
def test_parameters_close(name, billions):
    assert models.find(name).parameters / 1e9 == pytest.approx(billions, rel=0.001)


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-235b-a22b", 22), ("deepseek-v3", 37), ("kimi-k2", 32)]
)
def test_active_parameters(name, billions):
    assert models.find(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("name", models.names())
def test_a_config_file_gives_the_same_shapes(name, tmp_path):
    path = write(tmp_path, shipped.table("models")[name]["config"])
    by_name, by_file = models.find(name), models.find(str(path))
    assert by_name == dataclasses.replace(by_file, name=name, origin=by_name.origin)


def test_a_folder_with_a_config_will_do(tmp_path):
    write(tmp_path, LLAMA)
    assert models.find(str(tmp_path)).layers == 80


def test_a_decoder_inside_a_model_that_sees(tmp_path):
    path = write(tmp_path, {"model_type": "mllama", "text_config": LLAMA})
    assert models.find(str(path)).hidden == 8192


@pytest.mark.parametrize("field", config.NEEDED)
def test_missing_field(field, tmp_path):
    path = write(tmp_path, {k: v for k, v in LLAMA.items() if k != field})
    with pytest.raises(PlanError, match=f"config.json has no {field}"):
        models.find(str(path))


@pytest.mark.parametrize("value", [0, -1, "80", 1.5, True, [], {}])
def test_a_field_that_is_no_count(value, tmp_path):
    path = write(tmp_path, {**LLAMA, "num_hidden_layers": value})
    with pytest.raises(PlanError, match="num_hidden_layers: asked for a whole number"):
        models.find(str(path))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "\x00"])
def test_a_file_that_is_no_config(text, tmp_path):
    with pytest.raises(PlanError, match=r"config\.json"):
        models.find(str(write(tmp_path, text)))


def test_latent_attention_with_a_missing_dimension(tmp_path):
    shapes = dict(shipped.table("models")["deepseek-v3"]["config"])
    del shapes["qk_rope_head_dim"]
    with pytest.raises(PlanError, match="qk_rope_head_dim"):
        models.find(str(write(tmp_path, shapes)))


def test_unknown_name_brings_the_nearest():
    with pytest.raises(PlanError, match="did you mean llama3-70b"):
        models.find("llama-70b")


def test_no_such_file():
    with pytest.raises(PlanError, match="No such file"):
        models.find("nowhere/config.json")
