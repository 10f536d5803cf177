"""Who gets which heads of which layers from whom: every head of every layer once."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import braid
from braid import kv
from braid.kv.layout import consumers, cover, difference, whole_group

BASE = kv.Layout("m", "bf16", layers=6, heads=8, page_tokens=16, token_bytes=256)


def sources(heads, tp, stages):
    base = replace(BASE, heads=heads, tp=tp)
    cuts = [BASE.layers * n // stages for n in range(stages + 1)]
    return [
        replace(base, rank=rank, first_layer=begin, layers_here=end - begin)
        for begin, end in itertools.pairwise(cuts)
        for rank in range(tp)
    ]


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("tp_there", [1, 2, 4, 8])
@pytest.mark.parametrize("tp_here", [1, 2, 8])
@pytest.mark.parametrize(("stages", "salt"), [(1, 0), (2, 5), (3, 1)])
def test_every_head_of_every_layer_comes_once(heads, tp_there, tp_here, stages, salt):
    there = sources(heads, tp_there, stages)
    for mine in sources(heads, tp_here, 1):
        found = set()
        for part in cover(mine, there, salt):
            source = there[part.source]
            assert set(part.layers) <= set(
                range(source.first_layer, source.first_layer + source.layers_here)
            )
            assert part.source_head + part.heads <= source.heads_here
            assert part.target_head + part.heads <= mine.heads_here
            for layer, head in itertools.product(part.layers, range(part.heads)):
                named = source.first_head + part.source_head + head
                assert named == mine.first_head + part.target_head + head
                assert (layer, named) not in found
                found.add((layer, named))
        held = range(mine.first_head, mine.first_head + mine.heads_here)
        assert found == set(itertools.product(range(BASE.layers), held))


def test_replicas_share_the_work():
    there = sources(1, 4, 1)
    group = whole_group(replace(BASE, heads=1, tp=4))
    assert consumers(group, there) == [1, 1, 1, 1]
    assert consumers(group[:1], there, salt=2) == [0, 0, 1, 0]


def test_what_nobody_has_is_named():
    with pytest.raises(braid.InvalidArgument, match="of 2 prefillers has layer 3"):
        cover(BASE, sources(8, 2, 2)[:2])
    with pytest.raises(braid.InvalidArgument, match="nobody has head 4 of layer 0"):
        cover(BASE, sources(8, 2, 1)[:1])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"heads": 6, "tp": 4}, "6 heads cannot be shared evenly by 4 ranks"),
        ({"rank": 1}, "rank: asked for 0 to 0, found 1"),
        ({"layers": 0}, "layers: asked for 1 or more, found 0"),
        ({"first_layer": 6}, "0 layers from layer 6 on"),
        ({"first_layer": 4, "layers_here": 3}, "3 layers from layer 4 on, the model has 6"),
        ({"token_bytes": 256.0}, r"token_bytes: asked for a whole number, found 256.0 \(float\)"),
        ({"heads": float("nan")}, "heads: asked for a whole number, found nan"),
        ({"page_tokens": "16"}, r"page_tokens: asked for a whole number, found '16' \(str\)"),
        ({"tp": True}, "tp: asked for a whole number, found True"),
        ({"model": 5}, r"model: asked for a str, found 5 \(int\)"),
    ],
)
def test_what_is_no_layout_is_refused(wrong, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        replace(BASE, layers_here=wrong.pop("layers_here", 0), **wrong)


def test_a_layout_goes_through_json():
    assert kv.Layout.from_json(BASE.as_json()) == BASE
    of_numpys_numbers = replace(BASE, token_bytes=np.int64(256), layers=np.uint8(6))
    assert kv.Layout.from_json(json.loads(json.dumps(of_numpys_numbers.as_json()))) == BASE
    for wrong in (None, {}, {**BASE.as_json(), "tp": "2"}, {**BASE.as_json(), "more": 1}):
        with pytest.raises(braid.InvalidArgument, match="layout"):
            kv.Layout.from_json(wrong)
    other = replace(BASE, page_tokens=32, tp=2)
    assert difference(BASE, other, ("a", "b")) == "layout: page_tokens: 16 at 'a', 32 at 'b'"
    assert difference(BASE, replace(BASE, tp=2, rank=1), ("a", "b")) is None
