"""What a model's own load_weights does with a checkpoint, recorded once, so that the routing table
can bring every element to where the model has it.

    found = recorded(model, [("layers.0.q.weight", (4096, 4096), torch.bfloat16), ...])
    receiver = weights.Receiver(engine, rank, found.parameters)

The model loads tensors without memory (torch's meta device). A view of one tells by its offset and
strides which elements of the checkpoint it is, and a copy into the model tells where they belong.
So fused matrices, a tensor-parallel rank's part, experts and transposes come out as boxes, for any
model, without a list of its names. Nothing of the model is changed by a copy.

What is no copy (a product, a sum, a number that is looked at) cannot be recorded: InvalidArgument
names the operation and the checkpoint's tensor. Such a model takes whole tensors, through
braid.weights.doors.vllm.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from braid.errors import InvalidArgument
from braid.weights import Parameter
from braid.weights.pieces import Shape
from braid.weights.views import boxes_of_view

Described = tuple[str, Sequence[int], torch.dtype]
"""A checkpoint's tensor: name, shape, type."""
_aten = torch.ops.aten
_VALUES_KEPT = {_aten._to_copy.default, _aten.clone.default, _aten.contiguous.default}
"""Another type, place or order in memory, the same values."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a load does."""

    parameters: list[Parameter]
    """Where each box of the checkpoint lies in the model's memory."""
    unread: list[str]
    """Tensors of the checkpoint that went nowhere."""
    unwritten: list[str]
    """The model's parameters to which nothing of the checkpoint came."""


def recorded(
    model: Any, checkpoint: Iterable[Described], load: Callable[[Any], object] | None = None
) -> Recorded:
    """Records `load`, or the model's load_weights, which is given (name, tensor) one by one.

    model: torch's module, whose parameters and buffers are where they will be served from.
    """
    homes = dict(_homes(model))
    recorder = _Recorder(homes)
    tensors = [
        (name, recorder.whole(name, tuple(shape), dtype)) for name, shape, dtype in checkpoint
    ]
    with recorder:
        (load or model.load_weights)(iter(tensors))
    return recorder.found([name for name, _ in tensors])


def _homes(model: Any) -> Iterable[tuple[str, torch.Tensor]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor.detach()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _has(home: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the first and the last element of a target are a home's, both of one storage."""
    if home.element_size() != target.element_size():
        return False
    if not home.numel() or not target.numel():
        return not target.numel()
    first = target.storage_offset() - home.storage_offset()
    steps = zip(target.size(), target.stride(), strict=True)
    last = first + sum((length - 1) * stride for length, stride in steps)
    return _is_place_of(home, first) and _is_place_of(home, last)


def _is_place_of(home: torch.Tensor, place: int) -> bool:
    """Whether an element lies so far behind the home's first one."""
    axes = sorted(zip(home.stride(), home.size(), strict=True), reverse=True)
    for stride, length in axes:
        if stride and place > 0:
            place -= min(place // stride, length - 1) * stride
    return place == 0


def _lengths(tensor: torch.Tensor) -> list[int]:
    return [length for length in tensor.shape if length != 1]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor of the checkpoint, in one type."""

    name: str
    shape: Shape
    tensor: torch.Tensor
    """Kept, so that its storage is nobody else's."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy: a view of a whole, to a view of a home."""

    whole: _Whole
    home: str
    size: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    target_offset: int
    target_strides: tuple[int, ...]

    @property
    def target(self) -> tuple[Any, ...]:
        """Which elements of the model it writes."""
        return self.home, self.size, self.target_offset, self.target_strides


class _Recorder(TorchDispatchMode):
    """Sees every operation of the load."""

    def __init__(self, homes: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._homes = homes
        self._homes_in: dict[int, list[str]] = {}
        """By storage: of those that are tied the first, and others that lie beside each other."""
        for name, tensor in homes.items():
            known = self._homes_in.setdefault(_storage(tensor), [])
            if not any(_has(homes[other], tensor) for other in known):
                known.append(name)
        self._wholes: dict[int, _Whole] = {}
        self._made: dict[int, tuple[str, torch.Tensor]] = {}
        """Storages of what was computed from the checkpoint: how."""
        self._copies: dict[tuple[Any, ...], _Copy] = {}

    def whole(self, name: str, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._wholes[_storage(tensor)] = _Whole(name, shape, tensor)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is _aten.copy_.default and self._is_of_checkpoint(args[1]):
            return self._copy(args[0], args[1])
        if func in _VALUES_KEPT and self._is_of_checkpoint(args[0]):
            return self._again(args[0], (kwargs or {}).get("dtype"))
        return self._computed(func, args, kwargs or {})

    def _is_of_checkpoint(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor):
            return False
        key = _storage(tensor)
        if key in self._made:
            raise InvalidArgument(f"weights: a load is no copy: {self._made[key][0]}")
        return key in self._wholes

    def _again(self, view: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """The same elements of the same whole, in another type, whatever order was asked for."""
        whole = self._wholes[_storage(view)]
        made = self.whole(whole.name, whole.shape, dtype or view.dtype)
        return made.as_strided(view.size(), view.stride(), view.storage_offset())

    def _copy(self, target: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        whole = self._wholes[_storage(view)]
        homes = self._homes_in.get(_storage(target), [])
        home = next((name for name in homes if _has(self._homes[name], target)), None)
        if home is None:
            raise InvalidArgument(
                f"weights: '{whole.name}' is copied to memory that is no parameter's of the model"
                + (f", or of several of {homes}" if homes else "")
            )
        if _lengths(target) != _lengths(view) or view.element_size() != whole.tensor.element_size():
            raise InvalidArgument(
                f"weights: '{whole.name}': {tuple(view.shape)} of {view.dtype} is spread over "
                f"{tuple(target.shape)} of '{home}'"
            )
        view = view.view(target.shape)  # axes of one element may be missing on either side
        first = target.storage_offset() - self._homes[home].storage_offset()
        copy = _Copy(whole, home, tuple(target.shape), view.storage_offset(), view.stride(), first,
                     target.stride())  # fmt: skip
        self._copies[copy.target] = copy  # what comes later has the last word
        return target

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Views stay what they are; everything else that reads the checkpoint is noted."""
        names = sorted({
            self._wholes[_storage(leaf)].name
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and self._is_of_checkpoint(leaf)
        })  # fmt: skip
        how = f"{func} of {', '.join(repr(name) for name in names)}"
        try:
            found = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not names:
                raise
            raise InvalidArgument(f"weights: a load is no copy: {how}: {error}") from error
        for leaf in tree_leaves(found) if names else ():
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in self._wholes:
                if _storage(leaf) in self._homes_in:
                    raise InvalidArgument(f"weights: a load is no copy: {how}")
                self._made[_storage(leaf)] = how, leaf
        return found

    def found(self, names: Sequence[str]) -> Recorded:
        parameters = [parameter for copy in self._copies.values() for parameter in self._of(copy)]
        read = {copy.whole.name for copy in self._copies.values()}
        written = {copy.home for copy in self._copies.values()}
        return Recorded(
            parameters,
            [name for name in names if name not in read],
            sorted({name for names in self._homes_in.values() for name in names} - written),
        )

    def _of(self, copy: _Copy) -> Iterable[Parameter]:
        try:
            boxes = boxes_of_view(
                copy.whole.shape, copy.size, copy.offset, copy.strides, copy.target_offset,
                copy.target_strides,
            )  # fmt: skip
        except InvalidArgument as error:
            raise InvalidArgument(
                f"weights: '{copy.whole.name}' in '{copy.home}': {error}"
            ) from None
        for box in boxes:
            yield Parameter(
                copy.whole.name, self._homes[copy.home], copy.whole.shape, start=box.start,
                size=box.size, strides=box.strides, offset=box.offset,
            )  # fmt: skip
