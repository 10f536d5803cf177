"""Sizes of windows, in the form that callers of DeepEP ask for them."""

from dataclasses import dataclass

from braid.errors import InvalidArgument

_TOKENS_OF_HINT = 128  # of each rank in one round of a normal call
_SIDE_BYTES = 1024  # ids, weights and scales of a token


@dataclass(frozen=True)
class Config:
    """DeepEP's numbers. Queues are not how braid moves rows, so they change nothing but hints."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for normal calls on rows of `hidden_bytes`. Less works, too, in more rounds."""
        return 2 * num_ranks * _TOKENS_OF_HINT * (hidden_bytes + _SIDE_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:  # noqa: ARG002
        """None: ranks on other hosts are reached out of the same window."""
        return 0


def default_config(num_ranks: int, num_sms: int) -> Config:
    if num_ranks < 1:
        raise InvalidArgument(f"argument num_ranks: expected 1 or more, got {num_ranks}")
    return Config(num_sms)
