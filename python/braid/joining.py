"""What a rank joins a group with: who it is, and its options as BRAID_ variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.arguments import checked_number
from braid.errors import InvalidArgument


@dataclass(frozen=True)
class Identity:
    """Who a rank is, for programs that do not take it from a launcher's environment.

    Rank 0 listens at store_address on the first free port from store_port on (eight are tried). All
    ranks of one group give the same store_address, store_port and job_id; the secret that they
    share is the option job_token.
    """

    rank: int
    size: int
    local_rank: int = 0
    store_address: str = "127.0.0.1"
    store_port: int = 0
    """1 to 65535; not used by a group of one rank."""
    job_id: str = ""
    """A public name; a store refuses ranks that say another one."""

    def __post_init__(self) -> None:
        numbers = {"rank": self.rank, "size": self.size, "local_rank": self.local_rank}
        for name, value in {**numbers, "store_port": self.store_port}.items():
            most = 65535 if name == "store_port" else 2**31 - 1
            checked_number("identity", name, value, most)


def as_variables(options: Mapping[str, object]) -> dict[str, str]:
    """Options as BRAID_ variables; None means "as the environment says"."""
    texts = {}
    for name, value in options.items():
        if name == "timeout" and isinstance(value, int | float):
            value = f"{value:.9f}s"
        elif name == "tune" and isinstance(value, bool):
            value = "auto" if value else "off"
        if value is not None:
            text = texts[f"BRAID_{name.upper()}"] = _text(value)
            try:
                text.encode()
            except UnicodeEncodeError:
                found = f"{text!r:.80}"
                raise InvalidArgument(f"option {name}: asked for Unicode, found {found}") from None
    return texts


def _text(value: object) -> str:
    """An option as its BRAID_ variable would spell it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(item) for item in value)
    return str(value)
