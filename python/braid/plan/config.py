"""A Hugging Face config.json as a Model."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from braid.plan.basis import Basis
from braid.plan.families import FAMILIES, build, mlp
from braid.plan.families.fields import Fields
from braid.plan.families.older import four_times
from braid.plan.families.traits import Traits
from braid.plan.model import Model
from braid.plan.wrong import PlanError

Config = Mapping[str, Any]

_INSIDE = ("text_config", "llm_config", "language_config")
"""Where models that also see or hear keep the decoder's shapes."""
_SENSES = ("vision_config", "audio_config", "vision_tower", "vit_config", "patch_size")
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
_UNGATED = re.compile("gpt|codegen|bloom|xglm|pythia")
_UNGATED_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast")
"""Gates are of silu, swish or a tanh form of gelu."""
_STRANGE = re.compile(
    "mamba|ssm|rwkv|lru_|linear_|recurrent|hybrid|retention|conv|altup|laurel|cross_attention"
    "|encoder|decoder_layers|hidden_groups|embedding_size|embed_proj|type_vocab|kv_shared"
    "|block_configs|index_topk|zero_expert|attn_layer|attn_type_list|full_attention_interval"
    "|layer_period|hyper_connection|per_layer|_per_stack|num_memory|ngram|d_model|depth"
    "|relative_attention|position_bias|global_attn_every|_lora$|keep_window|moe_config|moe_layers_enum"
    "|residual_moe|_mlp_res$|use_residual$|kv_channels|share_q|share_expert_dim|attention_groups"
    "|ff_dim|dim_ff|ff_intermediate|intermediate_multiple|shared_input_output|moe_latent"
)
"""Fields of unknown families that say: these layers are not Llama's."""
_STRANGE_KINDS = ("beam", "git", "yuan")
"""Families whose configs look like Llama's, and whose layers are not."""
_ENCODERS = re.compile("bert|electra|xlnet|^esm|clip|siglip")
_GUESS = Traits(is_windowed=True)
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
    if not text.get("architectures"):
        text = {**text, "architectures": _task(config)}
    return text, True


def _task(config: Config) -> list[str]:
    """The class's name, where it tells a task. Outside, a name in Model may have an output."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return [] if name.endswith("Model") else [name]


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
    if kind in _STRANGE_KINDS or _STRANGE.search(kind):
        raise PlanError(
            f"model {name}: {what}: braid has no rule for its layers; --params takes a count"
        )
    if strange := next(_strange(text), None):
        raise PlanError(
            f"model {name}: {what} has {strange}, and braid has no rule for such layers;"
            " --params takes a count"
        )
    activation = text.get("hidden_act") or text.get("activation_function")
    is_ungated = bool(_UNGATED.search(kind)) or activation in _UNGATED_ACTIVATIONS
    traits = _GUESS
    if is_ungated:
        traits = replace(traits, gated=False, needs=(), derive=four_times)
    elif any(text.get(field) for field in mlp.COUNT):
        traits = replace(traits, needs=())  # unless a layer without experts is met
    found = _known(text, traits, name, origin, is_inside=False)
    warning = f"{what} is no family whose sum braid has tested: layers are counted as Llama's"
    return replace(found, basis=Basis.ASSUMED, warnings=(*found.warnings, warning))


def _strange(text: Config) -> Iterator[str]:
    """Fields that say: these layers are not Llama's."""
    for field, value in text.items():
        if value and _STRANGE.search(field):
            yield field
    switches = ("is_moe", "use_moe")
    has_experts = any(text.get(field) for field in mlp.COUNT)
    yield from (field for field in switches if text.get(field) is False and has_experts)
    values = text.get("v_head_dim")
    if values and not text.get("kv_lora_rank") and values != text.get("head_dim"):
        yield "v_head_dim"
