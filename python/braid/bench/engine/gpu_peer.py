"""A process whose memory is a GPU's, or the host's beside one: speaks as peer.py does.
`python -m braid.bench.engine.gpu_peer`.
"""

from typing import Any

import torch

from braid.bench.engine import pattern, peer

GPU, HOST = 0, -1


def signed(word: int) -> int:
    """The same 64 bits as a signed number, which is what torch calculates with."""
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return word - (1 << 64) if word >> 63 else word


def places(nbytes: int, device: str) -> torch.Tensor:
    """As pattern.base()."""
    ones = torch.arange(1, nbytes // 8 + 1, dtype=torch.int64, device=device)
    return ones * signed(pattern.ODD)


def wrong_words(
    found: torch.Tensor, number: int, page_bytes: int, source_ids: Any, target_ids: Any,  # noqa: ANN401
) -> int:  # fmt: skip
    """Words of 8 bytes that are not what they must be."""
    words, device = page_bytes // 8, found.device
    wanted = places(found.numel() * 8, str(device)) ^ signed(int(pattern.key(number)))
    rows, wanted = found.view(-1, words), wanted.view(-1, words)
    source = torch.from_numpy(source_ids.astype("int64")).to(device)
    target = torch.from_numpy(target_ids.astype("int64")).to(device)
    return int((rows[target] != wanted[source]).sum().item())


class GpuPeer(peer.Peer):
    """The engine has a GPU; the memory is on "cuda" or on "cpu"."""

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        """Makes both."""
        torch.cuda.set_device(0)
        self.engine = peer.engine_of(word, device=0)
        self.words = torch.zeros(word["nbytes"] // 8, dtype=torch.int64, device=word["device"])
        torch.cuda.synchronize()
        self.region = self.engine.register_buffer(
            self.words if word["device"] == "cuda" else self.words.numpy()
        )
        return {
            "address": self.engine.address().hex(),
            "descriptor": self.engine.descriptor(self.region).hex(),
        }

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        if word["number"] is None:
            self.words.zero_()
        else:
            made = places(self.words.numel() * 8, str(self.words.device))
            self.words.copy_(made ^ signed(int(pattern.key(word["number"]))))
        torch.cuda.synchronize()
        return {}

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        count, imm = word["count"], word["imm"]
        peer.end(self.engine.expect(imm, count, None, None), 20)
        wrong = wrong_words(
            self.words[: count * word["page_bytes"] // 8], word["number"], word["page_bytes"],
            pattern.shuffled(count, pattern.SOURCE), pattern.shuffled(count, pattern.TARGET),
        )  # fmt: skip
        return {"wrong_bytes": 8 * wrong, "too_many": self.engine.count(imm)}


if __name__ == "__main__":
    peer.main(GpuPeer())
