"""What the GPU bench's processes do with memory, here with the host's: as bench.engine.pattern."""

import numpy as np
import pytest

from braid.bench.engine import pattern

torch = pytest.importorskip("torch")

from braid.bench.engine import gpu_peer  # noqa: E402

NBYTES, NUMBER = 3 << 20, 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that there are several, the last one shorter."""
    monkeypatch.setitem(gpu_peer._PART_WORDS, "cpu", 50_000)


@pytest.mark.parametrize("page_bytes", [8 << 10, 64 << 10, 1 << 20])
def test_wrong_words_are_found_where_pages_went(page_bytes):
    count = NBYTES // page_bytes
    source_ids, target_ids = (pattern.shuffled(count, seed) for seed in (1, 2))
    source = torch.zeros(NBYTES // 8, dtype=torch.int64)
    gpu_peer.fill(source, NUMBER)
    assert np.array_equal(
        source.numpy().view(np.uint64), pattern.base(NBYTES) ^ pattern.key(NUMBER)
    )
    target = torch.zeros_like(source)
    rows = target.view(count, -1)
    rows[torch.from_numpy(target_ids.astype("int64"))] = source.view(count, -1)[
        torch.from_numpy(source_ids.astype("int64"))
    ]
    words = (NUMBER, page_bytes, source_ids, target_ids)
    assert gpu_peer.wrong_words(target, *words) == 0
    target[[1, 70_000, -1]] += 1
    assert gpu_peer.wrong_words(target, *words) == 3
    assert gpu_peer.wrong_words(source, *words) > 0
