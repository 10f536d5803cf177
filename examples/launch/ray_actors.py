"""Ray starts the ranks: an actor for each, told who it is, over the nodes of a cluster.

python examples/launch/ray_actors.py --ranks 2 examples/launch/train.py
"""

import argparse
import os
import runpy
import secrets
import socket

import ray


@ray.remote(num_cpus=1)
class Rank:
    """One rank: a process of its own."""

    def place(self) -> tuple[str, int]:
        """This actor's node, and a port of it that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def run(self, program: str, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        runpy.run_path(program, run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("program")
    args = parser.parse_args()
    ray.init()
    ranks = [Rank.remote() for _ in range(args.ranks)]
    places = ray.get([rank.place.remote() for rank in ranks])
    order = sorted(range(args.ranks), key=lambda i: places[i][0])  # one node's ranks together
    head, port = places[order[0]]
    token = secrets.token_hex(16)
    hosts = [places[i][0] for i in order]
    running = []
    for rank, i in enumerate(order):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(args.ranks),
            "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
            "MASTER_ADDR": head,
            "MASTER_PORT": str(port),
            "BRAID_JOB_TOKEN": token,
        }
        running.append(ranks[i].run.remote(os.path.abspath(args.program), environment))
    ray.get(running)  # an actor that fails or dies raises here, and ray ends the others


main()
