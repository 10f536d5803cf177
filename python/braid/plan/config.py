"""A Hugging Face config.json as a Model."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from braid.plan.basis import Basis
from braid.plan.families import FAMILIES, build
from braid.plan.families.fields import Fields
from braid.plan.families.older import four_times
from braid.plan.families.traits import Traits
from braid.plan.model import Model
from braid.plan.wrong import PlanError

Config = Mapping[str, Any]

_INSIDE = ("text_config", "llm_config", "language_config")
"""Where models that also see or hear keep the decoder's shapes."""
_SENSES = ("vision_config", "audio_config", "vision_tower", "vit_config")
_TEXT_OF = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "mllama": "mllama_text_model",
    "mistral3": "mistral",
    "llava": "llama",
}
"""The decoder's family where the object inside does not say."""
_UNGATED = re.compile("gpt|codegen|bloom|biogpt|xglm|pythia")
_UNGATED_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast")
"""Gates are of silu, swish or a tanh form of gelu."""
_STRANGE = re.compile(
    "mamba|ssm|rwkv|lru_|linear_|recurrent|hybrid|retention|conv|altup|laurel|cross_attention"
    "|encoder|decoder_layers|hidden_groups|embedding_size|embed_proj|type_vocab|kv_shared"
    "|block_configs|index_topk|zero_expert|attn_layer|attn_type_list|full_attention_interval"
    "|layer_period|hyper_connection|_per_layer|num_memory|ngram|d_model|depth"
    "|relative_attention|position_biased|global_attn_every|_lora$"
)
"""Fields of unknown families that say: these layers are not Llama's."""
_ENCODERS = re.compile("bert|electra|xlnet")
_GUESS = Traits(is_windowed=True, derive=four_times)
NEEDED = (*build.NEEDED[:3], "intermediate_size", *build.NEEDED[3:])


def from_config(config: Config, name: str, origin: str) -> Model:
    """A model from what its checkpoint's config.json says. PlanError names what is missing, and
    the field that says that a family's layers are none that braid can count.
    """
    text, is_inside = _decoder(config, name)
    kind = str(text.get("model_type") or _TEXT_OF.get(str(config.get("model_type")), ""))
    traits = FAMILIES.get(kind)
    found = _known(text, traits, name, origin, is_inside) if traits else _guess(text, name, origin)
    if any(config.get(field) for field in _SENSES):
        seen = "the decoder of text alone: what sees or hears is not counted"
        found = replace(found, notes=(*found.notes, seen))
    return found


def _decoder(config: Config, name: str) -> tuple[Config, bool]:
    """The object with the shapes, and whether it is one inside another."""
    inside = next((field for field in _INSIDE if config.get(field)), None)
    if inside is None:
        return config, False
    text = config[inside]
    if not isinstance(text, Mapping):
        raise PlanError(f"model {name}: {inside}: asked for an object, found {text!r:.40}")
    tied = config.get("tie_word_embeddings")
    if tied is not None and text.get("tie_word_embeddings") is None:
        text = {**text, "tie_word_embeddings": tied}
    return text, True


def _known(text: Config, traits: Traits, name: str, origin: str, is_inside: bool) -> Model:
    defaults = {**traits.defaults, **(traits.inner if is_inside else {})}
    values = {traits.names.get(field, field): value for field, value in text.items()}
    spelled = {ours: own for own, ours in traits.names.items() if ours not in text}
    fields = Fields(values, name, defaults, spelled)
    fields = replace(fields, values={**values, **traits.derive(fields)})
    return build.model(fields, traits, origin)


def _guess(text: Config, name: str, origin: str) -> Model:
    """Of a family that has no rule: Llama's layers, unless a field speaks against it."""
    kind = str(text.get("model_type") or "")
    what = f"model_type {kind!r:.40}" if kind else "a config without model_type"
    if _ENCODERS.search(kind):
        raise PlanError(
            f"model {name}: {what}: braid has no rule for this encoder; --params takes a count"
        )
    for field, value in text.items():
        if value and _STRANGE.search(field):
            raise PlanError(
                f"model {name}: {what} has {field}, and braid has no rule for such layers;"
                " --params takes a count"
            )
    activation = text.get("hidden_act") or text.get("activation_function")
    is_ungated = bool(_UNGATED.search(kind)) or activation in _UNGATED_ACTIVATIONS
    traits = replace(_GUESS, gated=not is_ungated)
    found = _known(text, traits, name, origin, is_inside=False)
    warning = f"{what} is no family whose sum braid has tested: layers are counted as Llama's"
    return replace(found, basis=Basis.ASSUMED, warnings=(*found.warnings, warning))
