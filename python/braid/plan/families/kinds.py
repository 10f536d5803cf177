"""Which layer is what: one that looks at all tokens, one with a window, or a recurrence.

Configs say so in a dozen ways: a list with an entry for every layer, a period and an offset, a
string of letters. What none of them says is the family's habit.
"""

from braid.plan.families.fields import Fields
from braid.plan.families.traits import Traits

FULL, WINDOW, CHUNK, RECURRENT, MLP, SPARSE = "full", "window", "chunk", "recurrent", "mlp", "moe"
_WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "indexed_attention": FULL,
    "sliding_attention": WINDOW,
    "local_attention": WINDOW,
    "local": WINDOW,
    "global": FULL,
    "chunked_attention": CHUNK,
    "linear_attention": RECURRENT,
    "mamba": RECURRENT,
    "mlp": MLP,
    "moe": SPARSE,
}
_LETTERS = {"M": RECURRENT, "*": FULL, "-": MLP, "E": SPARSE}
_LISTS = ("layer_types", "layers_block_type", "attention_layers")


def of(fields: Fields, traits: Traits, layer: int) -> str:
    """One of the kinds above."""
    return (
        _listed(fields, layer)
        or _by_letters(fields, layer)
        or _by_number(fields, layer)
        or _by_period(fields, traits, layer)
    )


def _listed(fields: Fields, layer: int) -> str:
    for field in _LISTS:
        word = fields.of_layer(field, layer)
        if word is not None:
            if not isinstance(word, str) or word not in _WORDS:
                raise fields.unknown(field, f"braid has no rule for layers of kind {word!r:.40}")
            return _WORDS[word]
    return ""


def _by_letters(fields: Fields, layer: int) -> str:
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None:
        return ""
    if not isinstance(pattern, str) or len(pattern) != fields.layers():
        raise fields.wrong("hybrid_override_pattern", "a letter for each layer", pattern)
    if pattern[layer] not in _LETTERS:
        raise fields.unknown("hybrid_override_pattern", f"{pattern[layer]!r} is no kind of layer")
    return _LETTERS[pattern[layer]]


def _by_number(fields: Fields, layer: int) -> str:
    """1 for attention, 0 for a recurrence; or the numbers of the layers with attention."""
    number = fields.of_layer("attn_type_list", layer)
    if number is not None:
        return FULL if number == 1 else RECURRENT
    chosen = fields.list("attn_layer_indices")
    if chosen is None:
        return ""
    return FULL if layer in chosen else RECURRENT


def _by_period(fields: Fields, traits: Traits, layer: int) -> str:
    if traits.recurrence:
        period = fields.whole("attn_layer_period", 0, least=0)
        if period:
            offset = fields.whole("attn_layer_offset", 0, least=0)
            return FULL if layer % period == offset else RECURRENT
        interval = fields.whole("full_attention_interval", 0, least=0)
        return FULL if interval and (layer + 1) % interval == 0 else RECURRENT
    return WINDOW if _is_windowed(fields, traits, layer) else FULL


def _is_windowed(fields: Fields, traits: Traits, layer: int) -> bool:
    if fields.get("use_sliding_window") is not None:
        from_layer = fields.whole("max_window_layers", 0, least=0)
        return bool(fields.get("use_sliding_window")) and layer >= from_layer
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # "LLLG"
        return bool(pattern[layer % len(pattern)] == "L")
    every = fields.whole("sliding_window_pattern", traits.full_every, least=0)
    return (layer + 1) % every != 0 if every else traits.is_windowed


def window(fields: Fields, traits: Traits, layer: int) -> int:
    """Tokens that an attention layer keeps; 0 for all."""
    kind = of(fields, traits, layer)
    if kind == CHUNK:
        return fields.whole("attention_chunk_size")
    if kind != WINDOW:
        return 0
    if fields.get("sliding_window") is None and not _names_windows(fields):
        return 0
    return fields.whole("sliding_window")


def _names_windows(fields: Fields) -> bool:
    """Whether layers are said to have a window, so that its width must be there."""
    return any(fields.get(field) is not None for field in _LISTS)
