"""The transfer engine: one-sided writes and reads between processes, from any thread to any peer.

with braid.Engine(name="prefill") as engine:
    pages = engine.register(cache)                    # once; the memory stays the caller's
    queue.put(pages.descriptor)                       # opaque, picklable, by any means
    theirs = queue.get()                              # a peer's
    engine.write_pages(pages, theirs, 65536, [3, 1], [0, 7], imm=7).wait()
# ... and there: engine.expect(7, 2).wait() ends when both pages have landed

A transfer under an immediate `imm` (0 to 2**32 - 1) makes the target's count of it grow, by 1 for
a write and by 1 for each page, so both sides know the number in advance. When a ticket has ended,
well or not, no byte of its transfer is read or lands any more. docs/engine.md has the rest.

Units: bytes and seconds. Threads: any, at once. Errors: those of braid.errors.
"""

from braid.engine.engine import Engine
from braid.engine.group import PeerGroup
from braid.engine.region import Descriptor, Peer, Region
from braid.engine.ticket import Ticket
from braid.engine.words import Message, ScatterPart, Watch

__all__ = [
    "Descriptor",
    "Engine",
    "Message",
    "Peer",
    "PeerGroup",
    "Region",
    "ScatterPart",
    "Ticket",
    "Watch",
]
