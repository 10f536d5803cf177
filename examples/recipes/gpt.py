"""A small GPT over bytes, and this repository's own pages as its text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, context, width] and the result alike."""
        batch, length, width = x.shape
        heads = (
            self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class SmallGpt(nn.Module):
    """Bytes [batch, context] to scores of the next byte [batch, context, 256]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores; not yet probabilities."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(
    steps: int, rows: int, shape: Shape, rank: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Text and the same one byte on, [rows, context] each; another part for every rank and step."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in pages)), dtype=torch.uint8)
    for step in range(steps):
        dice = torch.Generator().manual_seed(1000 * step + rank)
        starts = torch.randint(len(text) - shape.context - 1, (rows,), generator=dice)
        whole = torch.stack([text[s : s + shape.context + 1] for s in starts.tolist()]).long()
        yield whole[:, :-1].to(device), whole[:, 1:].to(device)
