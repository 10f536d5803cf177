"""Between CPUs of several nodes: braid in its two stages, beside Gloo in the same processes."""

import fcntl
import os
import socket
import struct

from braid.bench import facts
from braid.bench.host.session import Bench, Settings, make_record, publish
from braid.bench.interrupt import Interrupt, join
from braid.errors import InvalidArgument
from braid.terminal.reporter import Reporter
from braid.this_host import boot_id

_SIOCGIFADDR = 0x8915


def interface_to(address: str) -> str:
    """The network interface that this host reaches `address` by; "" where it cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    asked = struct.pack("256s", name.encode())
                    found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                except OSError:
                    continue  # it has no address
                if socket.inet_ntoa(found[20:24]) == own:
                    return name
    except OSError:
        return ""
    return ""


def node_name() -> str:
    """This rank's node: containers of one machine may be several."""
    stated = os.environ.get("BRAID_HOST_ID", "")
    namespaces = "".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
    return stated or boot_id() + namespaces


def run_rank(settings: Settings) -> int:
    """The whole benchmark on this rank. The exit code: 1 when one byte was wrong anywhere."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_to(os.environ.get("MASTER_ADDR", "127.0.0.1"))
        os.environ["GLOO_SOCKET_IFNAME"] = name or "lo"
    with Interrupt() as stop, Reporter.for_this_rank() as reporter:
        comm = join(progress=reporter.tuning, **settings.options)
        with comm:
            if (nodes := facts.num_different(comm, node_name())) < 2:
                raise InvalidArgument(f"bench nodes: all {comm.size} ranks are on {nodes} node")
            bench = Bench(settings, comm, reporter, stop.asked)
            results = bench.run()
            record = make_record(settings, comm, results, bench.stopped, nodes)
            is_first = comm.rank == 0
            comm.barrier()
    if is_first:
        publish(settings, record)
    wrong = sum(r.wrong_bytes + (r.baseline.wrong_bytes if r.baseline else 0) for r in results)
    return 1 if wrong else 0
