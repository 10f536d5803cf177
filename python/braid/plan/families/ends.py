"""Parameters of what is no layer: embeddings, positions, the last norm, the output's matrix."""

import re

from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits

_WITH_OUTPUT = re.compile("LMHead|CausalLM|Generation|ChatGLM|DoubleHeads")
"""Of classes with an output's matrix whose names could say otherwise."""
_WITHOUT_OUTPUT = re.compile("Model$|For(Sequence|Token)Classification|ForQuestionAnswering|Reward")


def parameters(fields: Fields, traits: Traits) -> int:
    """All of it."""
    hidden, vocabulary = fields.whole("hidden_size"), fields.whole("vocab_size")
    width = fields.whole("word_embed_proj_dim", hidden)
    has_output = not traits.is_encoder and not headless(fields)
    has_second = has_output and not fields.on(Says("tie_word_embeddings", traits.tied))
    count = vocabulary * width * (2 if has_second else 1)
    if width != hidden:
        count += 2 * width * hidden
    if has_output and fields.on(traits.output_bias):
        count += vocabulary
    norms = traits.embedding_norm + fields.on(traits.final_norm)
    count += norms * traits.norm_vectors * hidden
    if traits.positions is not None:
        count += (fields.whole("max_position_embeddings") + traits.positions) * hidden
    if traits.token_types:
        count += fields.whole("type_vocab_size") * hidden
    if traits.pooler:
        count += hidden * hidden + hidden
    return count


def headless(fields: Fields) -> str:
    """The class that the checkpoint is of, where its name says that there is no matrix for the
    output: embeddings, classifiers, reward models. Else "".
    """
    name = _architecture(fields)
    has_none = _WITHOUT_OUTPUT.search(name) and not _WITH_OUTPUT.search(name)
    return name if has_none else ""


def is_draft(fields: Fields) -> bool:
    """Whether the layers see what another model's layers gave: EAGLE's and Medusa's heads."""
    return bool(re.search("Eagle|Medusa", _architecture(fields)))


def _architecture(fields: Fields) -> str:
    names = fields.list("architectures") or [""]
    return "".join(letter if letter.isprintable() else "?" for letter in str(names[0]))
