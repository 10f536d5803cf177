"""Parameters of what is no layer: embeddings, positions, the last norm, the output's matrix."""

from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits


def parameters(fields: Fields, traits: Traits) -> int:
    """All of it."""
    hidden, vocabulary = fields.whole("hidden_size"), fields.whole("vocab_size")
    width = fields.whole("word_embed_proj_dim", hidden)
    count = vocabulary * width * (1 if is_tied(fields, traits) else 2)
    if width != hidden:
        count += 2 * width * hidden
    if fields.on(traits.output_bias):
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


def is_tied(fields: Fields, traits: Traits) -> bool:
    """Whether the output's matrix is the input's; an encoder has none of its own, either."""
    return traits.is_encoder or fields.on(Says("tie_word_embeddings", traits.tied))
