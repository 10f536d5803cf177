"""Message sizes of models: activations, KV cache, experts, buckets."""


def activation_bytes(tokens: int, hidden: int, element_bytes: int = 2) -> int:
    """What one tensor-parallel all-reduce carries, and what a pipeline stage hands on."""
    return tokens * hidden * element_bytes


def buckets_us(total_bytes: float, bucket_bytes: float, bucket_us: float) -> float:
    """F21: time of many messages of one size."""
    return total_bytes / bucket_bytes * bucket_us


def speedup(fast: float, slow: float) -> float:
    """F20: one quantity by another."""
    return fast / slow


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, element_bytes: int = 2) -> int:
    """Keys and values of all layers."""
    return 2 * layers * kv_heads * head_dim * element_bytes


def latent_bytes_per_token(layers: int, rank: int, rope_dim: int, element_bytes: int = 2) -> int:
    """The same for multi-head latent attention, which keeps one vector and a rotary key."""
    return layers * (rank + rope_dim) * element_bytes


def routed_bytes(tokens: int, top_k: int, token_bytes: int) -> int:
    """What one rank's tokens weigh when each goes to `top_k` experts as a copy of its own."""
    return tokens * top_k * token_bytes


def leaving_bytes(nbytes: float, ranks: int) -> float:
    """The part that leaves its rank when experts are chosen evenly."""
    return nbytes * (ranks - 1) / ranks


def once_per_rank_bytes(tokens: int, ranks: int, top_k: int, token_bytes: int) -> float:
    """What leaves a rank when a token goes to a peer once, however many experts it wants there.

    Choices count as independent, which is a little less than choosing without repetition gives.
    """
    misses = (1 - 1 / ranks) ** top_k
    return tokens * (ranks - 1) * (1 - misses) * token_bytes


def copies_per_peer(tokens: int, top_k: int, ranks: int) -> float:
    """Copies that one rank sends to one peer."""
    return tokens * top_k / ranks


def receive_slots_per_token(ranks: int, experts: int, top_k: int) -> int:
    """How often one token can reach one rank at most: the bound of a dispatch buffer."""
    return min(top_k, experts // ranks)
