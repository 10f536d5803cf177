"""Sizes of windows, in the form that callers of DeepEP ask for them."""

from dataclasses import dataclass, fields

from braid.moe.library import Checks

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

    def __post_init__(self) -> None:
        for field in fields(self):
            Checks("Config", None).whole(field.name, getattr(self, field.name))

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for normal calls on rows of `hidden_bytes`. Less works, too, in more rounds."""
        checks = Checks("get_nvl_buffer_size_hint", None)
        hidden_bytes = checks.whole("hidden_bytes", hidden_bytes, 0, 2**48)
        num_ranks = checks.whole("num_ranks", num_ranks)
        return 2 * num_ranks * _TOKENS_OF_HINT * (hidden_bytes + _SIDE_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:  # noqa: ARG002
        """None: ranks on other hosts are reached out of the same window."""
        return 0


def default_config(num_ranks: int, num_sms: int) -> Config:
    Checks("default_config", None).whole("num_ranks", num_ranks, 1)
    return Config(num_sms)
