"""EPHandle: what a dispatch of ElasticBuffer leaves, and how it is made of what Buffer's leaves."""

from dataclasses import dataclass
from typing import Any

from braid.arrays import Array
from braid.moe.expanded import slots_of
from braid.moe.library import library_of, shape_of


@dataclass
class EPHandle:
    """What dispatch leaves for combine, and for a dispatch of the same layout. N ranks, L experts
    here, n rows came, of K choices.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Array
    """[T, K], a copy with do_handle_copy."""
    num_recv_tokens: int
    """n; the worst case without do_cpu_sync."""
    num_expanded_tokens: int
    """Rows of the expanded layout, with padding; 0 of a compact one."""
    num_recv_tokens_per_expert_list: list[int]
    """Rounded up to expert_alignment; empty without do_cpu_sync."""
    psum_num_recv_tokens_per_scaleup_rank: Array
    """[N]: rows of ranks 0 to i."""
    psum_num_recv_tokens_per_expert: Array
    """[L], rounded up: of experts 0 to i; expanded: where the rows of i end that are no padding."""
    num_unaligned_recv_tokens_per_expert: Array
    """[L]."""
    recv_src_metadata: Array
    """[n, 2 + K]: source rank * num_max_tokens_per_rank + token, the row's number among those of
    its source, and for each choice its expanded row, -1 elsewhere and in a compact layout."""
    inner: Any
    """Buffer's handle."""

    dst_buffer_slot_idx = token_metadata_at_forward = channel_linked_list = None


@dataclass
class Shape:
    """What the layout of a dispatch follows from."""

    ids: Any
    num_experts: int
    most_tokens: int
    alignment: int


def make_handle(
    rank: int, call: Shape, inner: Any, ids: Array, counts: list[int], do_expand: bool
) -> EPHandle:
    """Of what a first dispatch gave: Buffer's handle, ids and counts of what came."""
    num_ranks = shape_of(inner[0])[0]
    new, unit = library_of(ids), call.alignment
    room, topk = shape_of(ids)
    by_rank = new.empty((num_ranks,), "int32")  # rows of sources 0 to i
    by_rank[:] = inner[0][:, rank]
    number = new.count_up(room)
    source = (number[:, None] >= by_rank[None, :]).sum(1)
    before = new.zeros((num_ranks + 1,), "int64")
    before[1:] = by_rank
    came = source < num_ranks  # else room that no row came into
    metadata = new.empty((room, 2 + topk), "int32")
    metadata[:] = -1
    metadata[:, 0] = (source * call.most_tokens + inner[3] + 1) * came - 1
    metadata[:, 1] = (number - before[source] + 1) * came - 1
    local = new.count_up(call.num_experts // num_ranks)
    per_expert = (ids.reshape(-1, 1) == local[None, :]).sum(0)
    padded = (per_expert + unit - 1) // unit * unit
    ends = padded.cumsum(0)
    if do_expand:
        slots = slots_of(new, ids, ends - padded, per_expert)
        metadata[:, 2:] = new.cast(slots, "int32")
        ends = ends - padded + per_expert
    return EPHandle(
        do_expand, call.num_experts, unit, call.most_tokens, 0, call.ids, room,
        sum(counts) if do_expand else 0, counts, by_rank,
        new.cast(ends, "int32"), new.cast(per_expert, "int32"), metadata, inner,
    )  # fmt: skip
