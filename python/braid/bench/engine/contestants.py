"""Who is measured: two processes each, which rest while others are measured."""

import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from braid.bench.engine import pattern
from braid.bench.engine.player import Answer, Player
from braid.closing import Closing

_FOLDER = Path(__file__).parent
_START_S = 60.0
_CALL_S = 90.0


@dataclass(frozen=True)
class Case:
    """`count` pages of one size: all in one call ("pages"), one after the other ("write"), or in
    each of the calls of a stream, of which `at_once` are under way ("several"). The pages of a call
    are as many of each of `layers` parts of the memory, part by part.
    """

    kind: str
    page_bytes: int
    count: int
    at_once: int = 1
    layers: int = 1

    def calls(self) -> int:
        """That one sample is the time of: it gives the mean of them."""
        return self.count if self.kind == "write" else self.at_once


class Contestant(Protocol):
    """Two processes that write from one to the other."""

    @property
    def name(self) -> str:
        """For tables."""

    def check(self, case: Case, number: int) -> int:
        """Writes all pages once, with bytes that `number` decides; how many are wrong."""

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """Of the whole call, or of one write."""

    def close(self) -> None:
        """Ends the processes."""


class Pair(Closing):
    """Two processes that speak as peer.py does."""

    def __init__(self, name: str, source: Player, target: Player) -> None:
        self.name = name
        self._source, self._target = source, target

    def close(self) -> None:
        """Both."""
        self._source.close()
        self._target.close()

    def choose(self, source_on: str, target_on: str) -> None:
        """Which of several memories is meant on each side."""
        self._source.ask("choose", ours=source_on, theirs=target_on)
        self._target.ask("choose", ours=target_on, theirs=source_on)

    def check(self, case: Case, number: int) -> int:
        """Too many counts are as bad as wrong bytes."""
        self._source.ask("fill", number=number)
        self._target.ask("fill", number=None)
        self._run(case, 1, imm=number)
        found = self._target.ask(
            "check", number=number, count=case.count, page_bytes=case.page_bytes, imm=number,
            at_once=case.at_once, layers=case.layers,
        )  # fmt: skip
        return int(found["wrong_bytes"]) + int(found["too_many"])

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """Under no immediate: nobody takes the counts."""
        return [float(us) for us in self._run(case, repeats, imm=None)["samples_us"]]

    def _run(self, case: Case, repeats: int, imm: int | None) -> Answer:
        self._target.ask("work")
        try:
            return self._source.ask(
                case.kind, _CALL_S, page_bytes=case.page_bytes, count=case.count, repeats=repeats,
                imm=imm, at_once=case.at_once, layers=case.layers,
            )  # fmt: skip
        finally:
            self._target.ask("rest")


class Reads(Pair):
    """The same processes, where the target fetches: what is timed is its reads."""

    def _run(self, case: Case, repeats: int, imm: int | None) -> Answer:
        del imm  # a read counts nothing
        self._source.ask("work")
        try:
            return self._target.ask(
                "read", _CALL_S, page_bytes=case.page_bytes, count=case.count, repeats=repeats
            )
        finally:
            self._source.ask("rest")


def introduce(
    source: Player, target: Player, each: Sequence[Mapping[str, object]] = ({}, {}),
    **words: object,
) -> None:  # fmt: skip
    """Both open, with what is said to each, and take each other's address and memory."""
    for player, own in zip((source, target), each, strict=True):
        player.tell("open", name=player.name, **words, **own)
    acquaint(source, target)


def acquaint(source: Player, target: Player) -> None:
    """Each takes what the other one said to "open"."""
    ours, theirs = source.answer(_START_S), target.answer(_START_S)
    for player, other in ((source, theirs), (target, ours)):
        player.ask("meet", _START_S, address=other["address"], descriptor=other["descriptor"])


@dataclass(frozen=True)
class Seats:
    """Where the processes run: `cores` are the source's and the target's; none: anywhere.

    The scheduler of a host with other work may leave both on one core for a whole sample.
    """

    cores: tuple[int, int] | None = None

    def source(self) -> list[str]:
        """What its command line begins with."""
        return self._on(0)

    def target(self) -> list[str]:
        """The same."""
        return self._on(1)

    def _on(self, which: int) -> list[str]:
        return ["taskset", "-c", str(self.cores[which])] if self.cores else []


ANYWHERE = Seats()


def engine(way: str, nbytes: int, seats: Seats = ANYWHERE) -> Pair:
    """braid. "local": copies on this host; else a provider of libfabric, over loopback."""
    source = Player("source", prefix=seats.source())
    target = Player("target", prefix=seats.target())
    address = "" if way == "shm" else "127.0.0.1"
    nics = [] if way == "local" else [[way, address]]
    introduce(source, target, nbytes=nbytes, token=secrets.token_hex(16), nics=nics)
    return Pair("braid", source, target)


def nixl(
    python: Path,
    transports: str,
    nbytes: int,
    seats: Seats = ANYWHERE,
    *,
    is_read: bool = False,
) -> Pair:
    """NIXL over UCX, held to these transports ("tcp", "tcp,sm") and to loopback; is_read: its
    pages are read, as vLLM's NixlConnector does.
    """
    command = [str(python), str(_FOLDER / "nixl_peer.py")]
    # NIXL refuses a list without CUDA's where there is a GPU; host memory does not use it.
    gpu = ",cuda_copy" if Path("/dev/nvidiactl").exists() else ""
    environment = {"UCX_TLS": transports + gpu, "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "fatal",
                   "NIXL_LOG_LEVEL": "ERROR"}  # fmt: skip
    source = Player("nixl-source", command, seats.source(), environment)
    target = Player("nixl-target", command, seats.target(), environment)
    introduce(source, target, nbytes=nbytes, backend="UCX", settings={})
    if is_read:
        return Reads(f"NIXL, UCX {transports}, read", source, target)
    return Pair(f"NIXL, UCX {transports}", source, target)


PLUGIN = "NIXL, braid"


def nixl_over_braid(python: Path, plugin: Path, way: str, nbytes: int, seats: Seats) -> Pair:
    """The same calls of NIXL, with libplugin_BRAID.so for its backend."""
    command = [str(python), str(_FOLDER / "nixl_peer.py")]
    settings = {"nics": "none", "local": "yes"}
    if way != "local":
        settings = {"nics": f"{way}:127.0.0.1" if way != "shm" else "shm", "local": "no"}
    with tempfile.TemporaryDirectory() as folder:  # NIXL looks into it when it starts, once
        (Path(folder) / "libplugin_BRAID.so").symlink_to(plugin.resolve())
        environment = {"NIXL_PLUGIN_DIR": folder, "NIXL_LOG_LEVEL": "ERROR",
                       "BRAID_JOB_TOKEN": secrets.token_hex(16)}  # fmt: skip
        settings["hosts"] = "127.0.0.1"
        source = Player("braid-source", command, seats.source(), environment)
        target = Player("braid-target", command, seats.target(), environment)
        introduce(source, target, nbytes=nbytes, backend="BRAID", settings=settings)
    return Pair(PLUGIN, source, target)


class Plain:
    """tests/engine/plain_write.c, which speaks in plain lines."""

    def __init__(self, program: Path, provider: str, nbytes: int, seats: Seats) -> None:
        self.name = f"plain {provider}"
        address = "-" if provider == "shm" else "127.0.0.1"
        words = [provider, address, str(nbytes)]
        source, target = ([str(program), role, *words] for role in ("source", "target"))
        self._source = Player("plain-source", source, seats.source())
        self._target = Player("plain-target", target, seats.target())
        self._case: Case | None = None
        ours, theirs = (each.say("name") for each in (self._source, self._target))
        for player, other in ((self._source, theirs), (self._target, ours)):
            player.say(f"meet {other['name']} {other['address']} {other['key']}")

    def close(self) -> None:
        """Both."""
        self._source.close()
        self._target.close()

    def check(self, case: Case, number: int) -> int:
        """By its own program."""
        self._take(case)
        self._source.say(f"fill {number}")
        self._target.say("fill -1")
        self._run(case, 1)
        return int(self._target.say(f"check {number}")["wrong_bytes"])

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """As Pair."""
        self._take(case)
        return [float(us) for us in self._run(case, repeats)["samples_us"]]

    def _run(self, case: Case, repeats: int) -> Answer:
        self._target.say("work")
        try:
            return self._source.say(f"{case.kind} {repeats}", _CALL_S)
        finally:
            self._target.say("rest")

    def _take(self, case: Case) -> None:
        if case == self._case:
            return
        ids: Sequence[pattern.Ids] = [
            pattern.shuffled(case.count, seed) for seed in (pattern.SOURCE, pattern.TARGET)
        ]
        numbers = " ".join(str(int(each)) for side in ids for each in side)
        for player in (self._source, self._target):
            player.say(f"ids {case.page_bytes} {case.count} {numbers}")
        self._case = case


def has_nixl(python: Path) -> bool:
    """Whether that Python can import it."""
    test = (
        "import importlib.util as u, sys;"
        "sys.exit(not any(u.find_spec(n) for n in ('nixl', 'nixl_cu12', 'nixl_cu13')))"
    )
    try:
        return subprocess.run([str(python), "-c", test], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
