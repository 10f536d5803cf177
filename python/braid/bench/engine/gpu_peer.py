"""A process with memory of a GPU, and of the host beside it: speaks as peer.py does.
`python -m braid.bench.engine.gpu_peer`.
"""

from time import perf_counter_ns
from typing import Any

import torch

from braid.bench.engine import pattern, peer

GPU, HOST = "cuda", "cpu"
_PART_WORDS = {GPU: 1 << 24, HOST: 1 << 19}
"""Are filled or compared at a time: on the host what stays in a cache, since memory that is taken
anew for the whole of it takes longer than all that is measured.
"""


def signed(word: int) -> int:
    """The same 64 bits as a signed number, which is what torch calculates with."""
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return word - (1 << 64) if word >> 63 else word


def fill(words: torch.Tensor, number: int) -> None:
    """As pattern.base(), under a number."""
    key = signed(int(pattern.key(number)))
    step = _PART_WORDS[words.device.type]
    for begin in range(0, words.numel(), step):
        part = words[begin : begin + step]
        torch.arange(begin + 1, begin + 1 + part.numel(), out=part)
        part.mul_(signed(pattern.ODD)).bitwise_xor_(key)


def wrong_words(
    found: torch.Tensor, number: int, page_bytes: int, source_ids: Any, target_ids: Any,  # noqa: ANN401
) -> int:  # fmt: skip
    """Words of 8 bytes that are not what fill() makes of them, page by page."""
    words, device = page_bytes // 8, found.device
    key = signed(int(pattern.key(number)))
    rows = found.view(-1, words)
    source = torch.from_numpy(source_ids.astype("int64")).to(device)
    target = torch.from_numpy(target_ids.astype("int64")).to(device)
    within = torch.arange(1, words + 1, device=device)
    step = max(1, _PART_WORDS[device.type] // words)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for begin in range(0, len(source), step):
        wanted = source[begin : begin + step, None] * words + within
        wanted.mul_(signed(pattern.ODD)).bitwise_xor_(key)
        wrong += (rows[target[begin : begin + step]] != wanted).sum()
    return int(wrong.item())


class GpuPeer(peer.Peer):
    """The engine has a GPU: number `gpu` of what it is told. There is memory on "cuda" and on
    "cpu"; choose() says which is meant from then on.
    """

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        """Makes both."""
        torch.cuda.set_device(word["gpu"])
        self.engine = peer.engine_of(word, device=word["gpu"])
        self.memories = {
            where: torch.zeros(nbytes // 8, dtype=torch.int64, device=where)
            for where, nbytes in ((GPU, word["nbytes"]), (HOST, word["host_nbytes"]))
        }
        torch.cuda.synchronize()
        self.regions = {
            where: self.engine.register_buffer(words if where == GPU else words.numpy())
            for where, words in self.memories.items()
        }
        return {
            "address": self.engine.address().hex(),
            "descriptor": {
                where: self.engine.descriptor(region).hex()
                for where, region in self.regions.items()
            },
        }

    def meet(self, word: dict[str, Any]) -> dict[str, Any]:
        """Takes both of the other one's memories."""
        self.remotes = {
            where: self.engine.import_region(bytes.fromhex(text))
            for where, text in word["descriptor"].items()
        }
        return super().meet({**word, "descriptor": word["descriptor"][GPU]})

    def choose(self, word: dict[str, Any]) -> dict[str, Any]:
        """Of its own memories and of the other one's."""
        self.words, self.region = self.memories[word["ours"]], self.regions[word["ours"]]
        self.remote = self.remotes[word["theirs"]]
        return {}

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        if word["number"] is None:
            self.words.zero_()
        else:
            fill(self.words, word["number"])
        torch.cuda.synchronize()
        return {}

    def flow(self, word: dict[str, Any]) -> dict[str, Any]:
        """As pages(), but several calls are under way at a time: us for each."""
        count, calls = word["count"], word["calls"]
        ids = pattern.shuffled(count, pattern.SOURCE), pattern.shuffled(count, pattern.TARGET)
        times = []
        for _ in range(word["repeats"]):
            start = perf_counter_ns()
            tickets = [self.begin_pages(word, *ids) for _ in range(calls)]
            for ticket in tickets:
                peer.end(ticket, 60)
            times.append((perf_counter_ns() - start) / 1e3 / calls)
        return {"samples_us": times}

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        imm, (source_ids, target_ids) = word["imm"], peer.all_ids(word)
        peer.end(self.engine.expect(imm, len(target_ids), None, None), 20)
        wrong = wrong_words(
            self.words[: len(target_ids) * word["page_bytes"] // 8], word["number"],
            word["page_bytes"], source_ids, target_ids,
        )  # fmt: skip
        return {"wrong_bytes": 8 * wrong, "too_many": self.engine.count(imm)}


if __name__ == "__main__":
    peer.main(GpuPeer())
