"""What must come to a rank, made from the seed alone: every contestant is held against it."""

from typing import Any

import torch

from braid.bench.moe.contestants import Case
from braid.bench.moe.routings import Shape, ids_of

_BLOCK = 128  # channels of a scale
_MOST_FP8 = 448.0
_LEAST = 1e-4
_HALF_STEP = 16.5  # of the largest E4M3 values, in scales, and what fp32 rounds


def cast(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 and a scale for every 128 channels, as a caller of a normal dispatch hands them over."""
    blocks = x.float().view(len(x), -1, _BLOCK)
    most = blocks.abs().amax(2).clamp(min=_LEAST)
    by = torch.full_like(most, _MOST_FP8) / most  # a number by a tensor would be rounded twice
    rows = (blocks * by[..., None]).to(torch.float8_e4m3fn)
    return rows.view(x.shape), most * (1 / _MOST_FP8)


class Arrivals:
    def __init__(self, shape: Shape, routing: str, tokens: int, size: int, rank: int) -> None:
        self.shape, self.size = shape, size
        self._routing, self._tokens, self._rank = routing, tokens, rank
        self._local = shape.num_experts // size
        self._made: dict[tuple[int, str], Case] = {}

    def _tokens_of(self, source: int, device: Any) -> Case:
        """Made once: of 4096 tokens the host takes most of a second, which all checks would pay."""
        key = source, str(device)
        if key not in self._made:
            ids = ids_of(self.shape, self._routing, self._tokens, source)
            self._made[key] = Case(self.shape, ids, self.size, source, device)
        return self._made[key]

    def normal(self, device: Any) -> torch.Tensor:
        """Rows by source rank and token, once each."""
        rows = []
        for source in range(self.size):
            of = self._tokens_of(source, device)
            rows.append(of.x[(of.ids // self._local == self._rank).any(1)])
        return torch.cat(rows)

    def wrong_normal(self, got: Any) -> int:
        """Wrong bytes of what a normal dispatch gave: rows in bf16, or E4M3 rows and scales. More
        rows than came may follow.
        """
        parts = got if isinstance(got, tuple) else (got,)
        wanted = self.normal(parts[0].device)
        pairs = zip(parts, cast(wanted) if isinstance(got, tuple) else (wanted,), strict=True)
        return sum(wrong_bytes(found[: len(right)], right) for found, right in pairs)

    def wrong_low_latency(self, got: Any) -> int:
        """Bytes of rows that are not the token they are said to be, in E4M3, of those that are
        missing, and of those that came too often.
        """
        (rows, scales), count, handle = got[:3]
        src_info, ranges = (each.cpu() for each in handle[:2])
        wrong, told = 0, count.tolist()
        for source in range(self.size):
            of = self._tokens_of(source, rows.device)
            for expert in range(self._local):
                chosen = of.ids == self._rank * self._local + expert
                begin, end = _part(int(ranges[expert, source]))
                tokens = src_info[expert, begin:end].long()
                wanted = chosen.any(1).nonzero().flatten().cpu()
                told[expert] -= len(tokens)
                if not torch.equal(tokens.sort().values, wanted):
                    wrong += max(len(tokens), len(wanted))
                    continue
                found = rows[expert, begin:end].float().unflatten(-1, (-1, _BLOCK))
                steps = scales[expert, begin:end].float()[..., None]
                right = of.x[tokens.to(rows.device)].float().view(found.shape)
                far = (found * steps - right).abs() > _HALF_STEP * steps
                wrong += int((far | found.isnan()).flatten(1).any(1).sum())
        return self.shape.hidden * (wrong + sum(abs(int(n)) for n in told))


def _part(packed: int) -> tuple[int, int]:
    begin, count = packed >> 32, packed & 0xFFFFFFFF
    return begin, begin + count


def wrong_bytes(found: torch.Tensor, right: torch.Tensor) -> int:
    if found.shape != right.shape or found.dtype != right.dtype:
        return int(right.numel() * right.element_size())
    pair = (each.contiguous().view(torch.uint8) for each in (found, right))
    return int(torch.ne(*pair).sum())
