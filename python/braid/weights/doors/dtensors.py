"""What FSDP and tensor parallelism hold: torch's DTensors as parameters of braid.weights."""

from collections.abc import Iterable
from typing import Any

from torch.distributed.tensor import DTensor, Replicate, Shard

from braid import weights
from braid.errors import InvalidArgument


def parameter_of(name: str, tensor: Any) -> weights.Parameter:
    """This rank's part of a parameter, by its mesh and placements; a plain tensor is all of it.

    InvalidArgument for a placement that holds no values of its own (a partial sum).
    """
    if not isinstance(tensor, DTensor):
        return weights.Parameter(name, tensor.detach())
    shape = tuple(int(length) for length in tensor.shape)
    mesh = tensor.device_mesh
    placements = [_placement(name, each, len(shape)) for each in tensor.placements]
    at = tuple(int(place) for place in mesh.get_coordinate() or ())
    boxes = weights.boxes(shape, tuple(mesh.shape), at, placements)
    return weights.Parameter(name, tensor.to_local().detach(), shape, boxes=boxes)


def parameters_of(named: Iterable[tuple[str, Any]]) -> list[weights.Parameter]:
    """Of a model: parameters_of(model.named_parameters())."""
    return [parameter_of(name, tensor) for name, tensor in named]


def _placement(name: str, placement: Any, axes: int) -> weights.Shard | weights.Replicate:
    # A strided shard, which FSDP makes of what tensor parallelism has cut, is a Shard by class in
    # some versions of torch and has a class of its own in others.
    if (factor := getattr(placement, "split_factor", None)) is not None:
        return weights.Shard(int(placement.dim) % axes, int(factor))
    if isinstance(placement, Shard):
        return weights.Shard(int(placement.dim) % axes)
    if isinstance(placement, Replicate):
        return weights.Replicate()
    raise InvalidArgument(f"parameter '{name}': a placement of {placement} has no values to send")
