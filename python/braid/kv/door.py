"""Where a prefiller's ranks are asked for their addresses: a host and a port that a router knows.

A connection is answered by one JSON document and closed. Addresses hold no secret: who may connect
to the engines behind them is the engines' affair.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Sequence

from braid.closing import Closing
from braid.engine import Peer
from braid.errors import Exhausted, InvalidArgument, Unavailable
from braid.kv.ending import log
from braid.private_socket import private

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 16 << 20
_VERSION = 1
_TIMEOUT_S = 5.0
_AGAIN_S = 0.1


class Door(Closing):
    """Answers who asks for the addresses. A context manager.

    port 0: any that is free; `port` says which. Exhausted: it is taken.
    """

    def __init__(self, host: str, port: int, engine_id: str, peers: Sequence[Peer]) -> None:
        document = {
            "version": _VERSION,
            "engine_id": engine_id,
            "ranks": [peer.data.hex() for peer in peers],
        }
        data = json.dumps(document).encode()
        self._answer = _LENGTH.pack(len(data)) + data
        try:
            self._socket = private(socket.create_server((host, port)))
        except OSError as error:
            raise Exhausted(f"door: {host}:{port}: {error}") from error
        self.port: int = self._socket.getsockname()[1]
        self._closing = threading.Event()
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, name="braid.kv door", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        said = ""
        while not self._closing.is_set():
            try:
                guest = private(self._socket.accept()[0])
            except TimeoutError:
                continue
            except OSError as error:  # no descriptor is left for it, or it went: others will come
                if str(error) != said:
                    log.warning("door: port %d: %s", self.port, error)
                said = str(error)
                self._closing.wait(_AGAIN_S)
                continue
            said = ""
            with guest:
                guest.settimeout(_TIMEOUT_S)
                try:
                    guest.sendall(self._answer)
                except OSError as error:
                    log.debug("door: a guest went: %s", error)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(2)
        self._socket.close()


def ask(host: str, port: int, timeout: float = _TIMEOUT_S) -> tuple[str, list[Peer]]:
    """The engine's id and its ranks' addresses, all of it within `timeout` seconds.

    Unavailable: nobody answers there, or not in time.
    """
    until = time.monotonic() + timeout
    try:
        with socket.create_connection((host, port), timeout) as asked:
            (length,) = _LENGTH.unpack(_received(asked, _LENGTH.size, until))
            if length > _MOST_BYTES:
                raise InvalidArgument(f"door {host}:{port}: an answer of {length} bytes")
            document = json.loads(_received(asked, length, until))
    except (OSError, EOFError) as error:
        raise Unavailable(f"door {host}:{port}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"door {host!r:.99}:{port}: no name or no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise InvalidArgument(
            f"door {host}:{port}: asked for version {_VERSION}, found {document!r:.100}"
        )
    try:
        return str(document["engine_id"]), [Peer(bytes.fromhex(r)) for r in document["ranks"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"door {host}:{port}: no list of ranks: {error}") from error


def _received(asked: socket.socket, nbytes: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(data)} of {nbytes} bytes came in time")
        asked.settimeout(left)  # of what is left: who sends a byte now and then ends all the same
        part = asked.recv(min(1 << 16, nbytes - len(data)))
        if not part:
            raise EOFError(f"closed after {len(data)} of {nbytes} bytes")
        data += part
    return bytes(data)
