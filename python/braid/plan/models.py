"""Transformers by their shapes: from our table, or from a Hugging Face config.json.

Only shapes count here. A count of parameters is the sum over the weight matrices; it is checked
against the published totals in the tests.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid.plan import shipped
from braid.plan.wrong import PlanError, unknown

Config = Mapping[str, Any]

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
_UNGATED = ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "falcon", "bert")
_NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: what is cached per token is one small vector."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Experts:
    """The mixture of a model's sparse layers."""

    count: int
    per_token: int
    shared: int
    intermediate: int
    dense_layers: int


@dataclass(frozen=True)
class Model:
    """A decoder's shapes."""

    name: str
    origin: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    gated: bool
    positions: int
    latent: Latent | None
    experts: Experts | None

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent:
            return self._latent_parameters(self.latent)
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    def _latent_parameters(self, latent: Latent) -> int:
        q_dim = self.heads * (latent.nope_dim + latent.rope_dim)
        q = latent.q_rank * (self.hidden + q_dim) if latent.q_rank else self.hidden * q_dim
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return q + down + up + self.heads * latent.value_dim * self.hidden

    def _mlp_parameters(self, intermediate: int) -> int:
        return (3 if self.gated else 2) * self.hidden * intermediate

    @property
    def expert_parameters(self) -> int:
        """Of one expert; 0 for a dense model."""
        return self._mlp_parameters(self.experts.intermediate) if self.experts else 0

    @property
    def layer_parameters(self) -> int:
        """Of one layer; of a sparse one where there are both."""
        norms = 2 * self.hidden
        if not self.experts:
            return self.attention_parameters + self._mlp_parameters(self.intermediate) + norms
        router = self.experts.count * self.hidden
        mixture = (self.experts.count + self.experts.shared) * self.expert_parameters
        return self.attention_parameters + mixture + router + norms

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.experts.dense_layers if self.experts else self.layers

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    @property
    def embedding_parameters(self) -> int:
        """Input and output, and learned positions where a model has them."""
        return self.hidden * (self.vocabulary * (1 if self.tied else 2) + self.positions)

    @property
    def parameters(self) -> int:
        """All."""
        dense = self.attention_parameters + self._mlp_parameters(self.intermediate)
        dense += 2 * self.hidden
        sparse = self.layer_parameters
        layers = self.dense_layers * dense + self.sparse_layers * sparse
        return layers + self.embedding_parameters + self.hidden

    @property
    def active_parameters(self) -> int:
        """What one token passes through."""
        if not self.experts:
            return self.parameters
        idle = self.experts.count - self.experts.per_token
        return self.parameters - self.sparse_layers * idle * self.expert_parameters

    @property
    def cache_elements_per_token(self) -> int:
        """Elements of the KV cache, all layers."""
        if self.latent:
            return self.layers * (self.latent.kv_rank + self.latent.rope_dim)
        return 2 * self.layers * self.kv_heads * self.head_dim


def names() -> list[str]:
    """The models we know by name."""
    return list(shipped.table("models"))


def find(name: str) -> Model:
    """By name, or from a config.json (a file, or a folder that has one). PlanError else."""
    table = shipped.table("models")
    if name.lower() in table:
        row = table[name.lower()]
        return from_config(row["config"], name.lower(), shipped.source(row["source"]))
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json" or path.exists():
        return _from_file(path)
    raise unknown("model", name, table)


def _from_file(path: Path) -> Model:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"model {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"model {path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise PlanError(f"model {path}: a config.json holds an object")
    return from_config(config, str(path), f"config.json {path}")


def from_config(config: Config, name: str, origin: str) -> Model:
    """A model from what its checkpoint's config.json says. PlanError names what is missing."""
    text = config.get("text_config")  # models that also see keep the decoder's shapes here
    shapes = {_GPT2_NAMES.get(k, k): v for k, v in (text or config).items()}
    if shapes.get("model_type") == "gpt2" and shapes.get("intermediate_size") is None:
        shapes["intermediate_size"] = 4 * _whole(shapes, "hidden_size", name)
    missing = [field for field in _NEEDED if shapes.get(field) is None]
    if missing:
        raise PlanError(f"model {name}: config.json has no {', '.join(missing)}")
    hidden, heads = _whole(shapes, "hidden_size", name), _whole(shapes, "num_attention_heads", name)
    kind = str(shapes.get("model_type", ""))
    return Model(
        name=name,
        origin=origin,
        hidden=hidden,
        layers=_whole(shapes, "num_hidden_layers", name),
        heads=heads,
        kv_heads=_whole(shapes, "num_key_value_heads", name, heads),
        head_dim=_whole(shapes, "head_dim", name, hidden // heads),
        intermediate=_whole(shapes, "intermediate_size", name),
        vocabulary=_whole(shapes, "vocab_size", name),
        tied=bool(shapes.get("tie_word_embeddings", False)),
        gated=kind not in _UNGATED,
        positions=_whole(shapes, "max_position_embeddings", name, 0) if kind == "gpt2" else 0,
        latent=_latent(shapes, name),
        experts=_experts(shapes, name),
    )


def _whole(shapes: Config, field: str, name: str, default: int | None = None) -> int:
    """A count; a field that may be absent may be 0, too."""
    value = shapes.get(field)
    if value is None and default is not None:
        return default
    least = 1 if default is None else 0
    if type(value) is not int or value < least:
        raise PlanError(
            f"model {name}: {field}: asked for a whole number from {least} up, found {value!r}"
        )
    return value


def _latent(shapes: Config, name: str) -> Latent | None:
    if shapes.get("kv_lora_rank") is None:
        return None
    return Latent(
        q_rank=_whole(shapes, "q_lora_rank", name, 0),
        kv_rank=_whole(shapes, "kv_lora_rank", name),
        nope_dim=_whole(shapes, "qk_nope_head_dim", name),
        rope_dim=_whole(shapes, "qk_rope_head_dim", name),
        value_dim=_whole(shapes, "v_head_dim", name),
    )


def _experts(shapes: Config, name: str) -> Experts | None:
    field = next(
        (f for f in ("n_routed_experts", "num_experts", "num_local_experts") if shapes.get(f)), None
    )
    if field is None:
        return None
    return Experts(
        count=_whole(shapes, field, name),
        per_token=_whole(shapes, "num_experts_per_tok", name),
        shared=_whole(shapes, "n_shared_experts", name, 0),
        intermediate=_whole(
            shapes, "moe_intermediate_size", name, _whole(shapes, "intermediate_size", name)
        ),
        dense_layers=_whole(shapes, "first_k_dense_replace", name, 0),
    )
