"""Published figures computed again: formulas joined with tables, models and curves.

data/vectors.json calls these by name; each takes plain numbers and names.
"""

from braid.plan import hardware, models, network
from braid.plan.curve import Curve, Line, fit
from braid.plan.formulas import collectives, messages, rates, training
from braid.plan.parallel import tensor
from braid.plan.predict import Request, carry_factor, predict


def gbit_of_weights(parameters: float, bytes_per_parameter: float) -> float:
    """Weights in 1e9 bits."""
    return training.weight_bytes(parameters, bytes_per_parameter) * 8 / 1e9


def gbit(gbps: float) -> float:
    """GB/s in Gbit/s."""
    return gbps / rates.gbps_of_gbit(1)


def compute_s(
    parameters: float,
    sequence: int,
    batch: int,
    gpus: int,
    passes: int,
    peak_tflops: float,
    mfu: float,
) -> float:
    """F9, then F10."""
    work = training.tflop_per_gpu(parameters, sequence, batch, gpus, passes)
    return training.compute_s(work, peak_tflops, mfu)


def nvls_part(ranks: int, busbw: float, specified_gbps: float) -> float:
    """F17, as part of the links."""
    return rates.part_of(collectives.nvls_wire_gbps(ranks, busbw), specified_gbps)


def duplex_part(part: float) -> float:
    """A part of both directions as part of one."""
    return rates.part_of(part * 2, 1)


def predicted_busbw_gbps(
    hardware_name: str, op: str, ranks: int, nbytes: float, algorithm: str
) -> float:
    """Bus bandwidth as the links alone predict it."""
    path = hardware.find(hardware_name).paths[0]
    return predict(Request(op, nbytes, ranks), path, algorithm=algorithm).busbw_gbps


def outside_s(op: str, gpus: int, nodes: int, nbytes: float, nic_gbps: float) -> float:
    """F18: the NIC's share of the time."""
    return rates.seconds(collectives.outside_bytes(op, gpus, nodes, nbytes), nic_gbps)


def hierarchical_holds(
    nbytes: float,
    gpus: int,
    nodes: int,
    nic_gbit: float,
    hardware_name: str,
    measured_s: float,
    algorithm: str = "ring",
) -> bool:
    """Whether a measured all-reduce lies between our least and our most."""
    found = predict(
        Request("all_reduce", nbytes, gpus, nodes),
        hardware.find(hardware_name).paths[0],
        network.given(nic_gbit, "gpu"),
        algorithm,
    )
    most = found.most_us.value if found.most_us else 0.0
    return found.least_us.value <= measured_s * 1e6 <= most


def busbw_holds(
    nbytes: float,
    gpus: int,
    nodes: int,
    nic_gbit: float,
    hardware_name: str,
    busbw: float,
    algorithm: str,
) -> bool:
    """The same from a measured bus bandwidth."""
    measured_s = collectives.time_us("all_reduce", gpus * nodes, nbytes, busbw) / 1e6
    return hierarchical_holds(nbytes, gpus, nodes, nic_gbit, hardware_name, measured_s, algorithm)


def node_links(gpus: int, link: str) -> int:
    """GPUs' ends of links in a node."""
    return gpus * round(hardware.link_gbps(link) / hardware.one_link_gbps(link))


def node_duplex_gbps(gpus: int, link: str) -> float:
    """Both directions of all GPUs together."""
    return 2 * gpus * hardware.link_gbps(link)


def pair_part(link: str) -> float:
    """A pair's rate by the rate to all."""
    return hardware.pair_gbps(link) / hardware.link_gbps(link)


def link_ratio(fast: str, slow: str) -> float:
    """One link's rate by another's."""
    return hardware.link_gbps(fast) / hardware.link_gbps(slow)


def zero_ratio(stage: int) -> float:
    """A stage's bytes by those of DDP."""
    return training.zero_bytes(stage, 1, 1) / training.zero_bytes(0, 1, 1)


def tp_cliff_is_steep(
    model: str, tokens: int, hardware_name: str, nic_gbit: float, least: float
) -> bool:
    """Whether TP over two nodes communicates `least` times as long as inside one."""
    node = hardware.find(hardware_name)
    shape, path = models.find(model), node.paths[0]
    one = tensor.Question(shape, node.gpus_per_node, tokens, node)
    two = tensor.Question(
        shape, 2 * node.gpus_per_node, tokens, node, 2, network.given(nic_gbit, "gpu")
    )
    outside = tensor.communication(two, path, tokens).value
    return outside >= least * tensor.communication(one, path, tokens).value


def curve(hardware_name: str, op: str, ranks: int) -> Curve:
    """A shipped curve of a machine's first path."""
    found = hardware.find(hardware_name).paths[0].curves
    return next(each for each in found if (each.op, each.ranks) == (op, ranks))


def curve_us(hardware_name: str, op: str, ranks: int, nbytes: float) -> float:
    """A time from it."""
    return curve(hardware_name, op, ranks).time_us(nbytes)


def carried_us(hardware_name: str, op: str, ranks: int, wanted: int, nbytes: float) -> float:
    """A time from it, carried over to another number of ranks."""
    found = curve(hardware_name, op, ranks)
    return found.time_us(nbytes) * carry_factor(found, wanted)


def carried_busbw_gbps(
    hardware_name: str, op: str, ranks: int, wanted: int, nbytes: float
) -> float:
    """The same as bus bandwidth."""
    us = carried_us(hardware_name, op, ranks, wanted, nbytes)
    return collectives.busbw_gbps(op, wanted, nbytes, us)


def buckets_us(total_bytes: float, bucket_bytes: float) -> float:
    """F21, from the A100 table."""
    one = curve_us("a100-nvlink3", "all_reduce", 8, bucket_bytes)
    return messages.buckets_us(total_bytes, bucket_bytes, one)


def line(hardware_name: str, op: str, ranks: int) -> Line:
    """The one line that fits a whole curve best, in relative errors."""
    return fit(curve(hardware_name, op, ranks).points, weight=lambda us: 1 / us)


def fit_alpha_us(hardware_name: str, op: str, ranks: int) -> float:
    """Its latency."""
    return line(hardware_name, op, ranks).alpha_us


def fit_busbw_gbps(hardware_name: str, op: str, ranks: int) -> float:
    """Its bus bandwidth."""
    slope = line(hardware_name, op, ranks).us_per_byte
    return collectives.bus_factor(op, ranks) / slope / 1e3


def fit_error(hardware_name: str, op: str, ranks: int, which: str) -> float:
    """How far it is from the points: "mean" or "worst"."""
    found = line(hardware_name, op, ranks)
    return found.mean_error if which == "mean" else found.worst_error


def slope_busbw_gbps(hardware_name: str, op: str, ranks: int) -> float:
    """Bus bandwidth that one more byte sees at the large end."""
    slope = curve(hardware_name, op, ranks).slope_us_per_byte()
    return collectives.bus_factor(op, ranks) / slope / 1e3


def deviation(value: float, median: float) -> float:
    """From the median, as part of it."""
    return value / median - 1


def tp(model: str, ranks: int, tokens: int, hardware_name: str, name: str) -> float:
    """A number of `braid plan tp`."""
    node = hardware.find(hardware_name)
    asked = tensor.Question(models.find(model), ranks, tokens, node)
    return tensor.report(asked, list(node.paths), tensor.published_steps(asked)).value(name)


def extra_all_reduce_s(count: int, time_us: float) -> float:
    """Time of `count` all-reduces."""
    return count * time_us / 1e6


def tp_wire_bytes(model: str, ranks: int, tokens: int) -> float:
    """Ring bytes per GPU of one pass."""
    shape = models.find(model)
    one = messages.activation_bytes(tokens, shape.hidden)
    count = shape.all_reduces
    return collectives.wire_bytes("all_reduce", "ring", ranks, one) * count


def all_reduces(model: str) -> int:
    """Of one pass."""
    return models.find(model).all_reduces


def busbw_of_algbw(op: str, ranks: int, algbw: float) -> float:
    """Bus bandwidth of size by time."""
    return algbw * collectives.bus_factor(op, ranks)


def busbw_of_shard_rate(ranks: int, shard_gbps: float) -> float:
    """All-gather's bus bandwidth where a source divides one rank's shard by the time."""
    return busbw_of_algbw("all_gather", ranks, shard_gbps * ranks)


def parameters(model: str) -> int:
    """All."""
    return models.find(model).parameters


def layer_bytes(model: str) -> int:
    """One layer in bf16."""
    return models.find(model).layer_parameters * 2


def shard_bytes(model: str, ranks: int) -> float:
    """One rank's part of it."""
    return layer_bytes(model) / ranks


def expert_bytes(model: str, element_bytes: int) -> int:
    """One expert's weights."""
    return models.find(model).expert_parameters * element_bytes


def peer_bytes(tokens: int, top_k: int, ranks: int, token_bytes: int) -> float:
    """What one rank sends to one peer."""
    return messages.copies_per_peer(tokens, top_k, ranks) * token_bytes


def cache_bytes(model: str, tokens: int) -> int:
    """KV cache in bf16."""
    return models.find(model).cache_elements_per_token * tokens * 2


def weights_s(model: str, element_bytes: float, nics: int) -> float:
    """All weights over NICs of 400 Gbit/s."""
    return training.transfer_s(parameters(model), element_bytes, rates.node_gbps(nics, 400))
