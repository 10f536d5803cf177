"""What a dispatch leaves for its combine: DeepEP's tuples, with what braid needs besides."""

from typing import Any

from braid.arrays import Array


class DispatchHandle(tuple[Any, ...]):
    """(rank_prefix_matrix [N, N], channel_prefix_matrix [N, 1], recv_channel_prefix_matrix [N, 1],
    recv_src_idx [n], is_token_in_rank [T, N], send_head [T, N]); there is one channel, and
    send_head is a token's number among those to a rank, -1 where it does not go.
    """

    buffer: Any
    gpu: int | None
    phase: int
    rows_of: list[int]
    most_tokens: int
    """Of host memory only."""
    kept: Any = None
    """On GPUs in place of these, in device memory: its ticket, and what came."""
    recv_src_idx: Array
    is_token_in_rank: Array


class LowLatencyHandle(tuple[Any, ...]):
    """(src_info [L, M*N], layout_range [L, N], M, hidden, num_experts)."""

    buffer: Any
    gpu: int | None
    form: Any
    """low_latency.DispatchForm."""
    kept: Any
    """What only braid reads: slots of rows, copies, on GPUs the ticket."""
    number: int
    """Of the dispatch, among the buffer's."""
    phase: int
    ids_hash: int
    weights_hash: int
    """Of host memory only."""
    is_received: bool

    @property
    def copies(self) -> tuple[Array, Array, Array, Array] | None:
        """Of a dispatch with weights: how many copies came of every rank [N], and of each its token
        [N, M], rows of x [N, M, K], -1 for choices elsewhere, and weights [N, M, K].
        """
        return self.kept.copies  # type: ignore[no-any-return]
