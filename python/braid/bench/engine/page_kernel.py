"""A kernel of Triton that copies pages, as a plain program has it."""

import triton
import triton.language as tl

BLOCK_WORDS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def copy_pages(source, target, source_ids, target_ids, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    page, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < words
    out_of = tl.load(source_ids + page) * words
    into = tl.load(target_ids + page) * words
    tl.store(target + into + at, tl.load(source + out_of + at, mask=inside), mask=inside)
