"""A route's bytes as one text: where they lie, their checksum, how they are cut."""

import numpy as np
import pytest

import braid
from braid import _braid
from braid.weights.plan import Runs
from braid.weights.sums import Landed, Summing, Text, Tiling, cuts

ITEM = 2


def runs_of(run, count, seed=3):
    """Runs that lie apart and in no order, differently on both sides. Numbers of elements."""
    order = np.random.default_rng(seed).permutation(count)
    return Runs(run, 5, run + 3, order, 1, run, order[::-1].copy())


def text_of(runs, *, is_source):
    length = ITEM * (max(runs.source_offset, runs.target_offset) + 40 + (runs.run + 3) * 50)
    data = np.random.default_rng(7).integers(0, 256, length, np.uint8)
    return data, Text.of(data, runs, ITEM, is_source=is_source)


def joined(data, offset, stride, ids, run):
    begins = ids * (stride * ITEM) + offset * ITEM
    return np.concatenate([data[b : b + run * ITEM] for b in begins.tolist()])


@pytest.mark.parametrize("is_source", [True, False])
@pytest.mark.parametrize(("run", "count"), [(1, 40), (7, 13), (300, 4), (300, 1)])
def test_a_part_is_summed_where_it_lies(run, count, is_source):
    runs = runs_of(run, count)
    data, text = text_of(runs, is_source=is_source)
    side = (
        (runs.source_offset, runs.source_stride, runs.source_ids)
        if is_source
        else (runs.target_offset, runs.target_stride, runs.target_ids)
    )
    whole = joined(data, *side, run)
    assert text.nbytes == whole.size
    for begin in range(0, whole.size, 5):
        for nbytes in (0, 1, 2, run * ITEM, 3 * run * ITEM + 1, whole.size - begin):
            part = whole[begin : begin + nbytes]
            if part.size == nbytes:
                assert text.sum(begin, nbytes) == _braid.crc64(part), (begin, nbytes)
    for begin, nbytes in ((0, whole.size + 1), (whole.size, 1), (-1, 1), (0, -1)):
        with pytest.raises(braid.InvalidArgument, match=f"of a route of {whole.size}"):
            text.sum(begin, nbytes)


@pytest.mark.parametrize("most", [1, 2, 13, 14, 28, 100, 10_000])
@pytest.mark.parametrize(("run", "count"), [(1, 40), (7, 13), (300, 4)])
def test_cuts_are_all_of_a_route_in_order(run, count, most):
    runs = runs_of(run, count)
    data, text = text_of(runs, is_source=True)
    at = 0
    for cut in cuts(runs, ITEM, most):
        assert cut.begin == at
        assert cut.nbytes == cut.page_bytes * len(cut.source_ids) <= max(most, ITEM)
        begins = cut.source_ids * (runs.source_stride * ITEM) + cut.source_offset
        pages = np.concatenate([data[b : b + cut.page_bytes] for b in begins.tolist()])
        assert _braid.crc64(pages) == text.sum(cut.begin, cut.nbytes)
        at += cut.nbytes
    assert at == text.nbytes


def test_threads_give_the_same_numbers_in_order():
    runs = runs_of(300, 4)
    _, text = text_of(runs, is_source=True)
    for cores in (1, 64):
        summing = Summing(cores)
        assert summing.most == (0 if cores == 1 else 8)
        parts = list(cuts(runs, ITEM, 100))
        found = [(part, sum_of()) for part, sum_of in summing.each(text, parts, is_summed=True)]
        assert [part for part, _ in found] == parts
        assert [number for _, number in found] == [text.sum(p.begin, p.nbytes) for p in parts]
        summing.close()


def test_each_byte_comes_once():
    tiling = Tiling(10)
    assert not tiling.add(6, 4)
    assert not tiling.add(0, 3)
    assert tiling.add(3, 3)
    twice = Tiling(10)
    twice.add(0, 5)
    with pytest.raises(braid.InvalidArgument, match="a part came from 0 on, where 5 was due"):
        twice.add(0, 5)


@pytest.mark.parametrize("part", [(0, 20), (6, 5), (10, 1)])
def test_a_part_behind_the_routes_end_is_none(part):
    tiling = Tiling(10)
    tiling.add(0, 6)
    words = f"of a route of 10 bytes a part came from {part[0]} on, of {part[1]}"
    with pytest.raises(braid.InvalidArgument, match=words):
        tiling.add(*part)


def test_words_are_read_as_they_were_written():
    for checksum in (None, 0, 2**64 - 1):
        word = Landed(2**64 - 1, 2**63 - 1, 65535, 2**32 - 1, 1 << 50, 4 << 20, checksum)
        assert Landed.decode(word.encode()) == word
    good = Landed(1, 2, 3, 4, 5, 6, 7).encode()
    for bad in (b"", good[:-1], good + b"x", b"x" + good[1:], good[:4] + b"\x63" + good[5:]):
        with pytest.raises(braid.InvalidArgument, match="no word of version 2 of a part"):
            Landed.decode(bad)
