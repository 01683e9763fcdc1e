"""What a script trains, as a job keeps it whose workers have the optimizer: named float32 tensors, and all that is none in a
blob."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from recon.torch._tensors import DTYPES

GROUP = "state"
BLOB = "state/rest"
# Tensors of fewer values go into the blob: each that has a name of its own costs some hundred bytes elsewhere.
_SMALL = 64
# The blob may grow to so many times what it has at first, and has so many bytes at least.
_BLOB_GROWTH = 2
_BLOB_BYTES_MIN = 16 << 10
# Floats that say how many bytes the blob has, and before which step the state is: 16 bits each.
_NUMBER_FLOATS = 4
_HEAD_FLOATS = 2 * _NUMBER_FLOATS
_PLACEHOLDER = "recon.tensor"
# Of the tree: what belongs to no part. No part is called so.
_BESIDE = "beside the parts"


class Stateful(Protocol):
    """What can be saved and go on elsewhere: an optimizer, a scheduler, a GradScaler, an averaged model."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class WorkerState:
    """The parameters of a model and the states of what steps them, as one array of float32.

    Arguments:
        parameters: the trained ones, by name.
        parts: what else belongs to the state, by name: things with ``state_dict`` and ``load_state_dict``. Those that are
            optimizers of `parameters` are tried on a copy, since most of their state comes with their first step.

    The array has each parameter under its name, each larger tensor of the parts under ``state/<part>/<path>``, and one blob
    with everything else. Tensors of 64 bits take three values each, and are kept exactly.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], parts: Mapping[str, Stateful]) -> None:
        self._parameters, self._parts = dict(parameters), dict(parts)
        self.specs: list[tuple[str, list[int], str, bool, str]] = []
        self._places: dict[str, tuple[int, int]] = {}
        for name, parameter in self._parameters.items():
            self._add(name, parameter)
        tree, large = _split(_tried(self._parameters, self._parts))
        for path, tensor in large.items():
            self._add(path, tensor)
        size = len(_dumped(tree)) * _BLOB_GROWTH + _BLOB_BYTES_MIN
        self.specs.append((BLOB, [_HEAD_FLOATS + math.ceil(size / 2)], GROUP, True, "F32"))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        shape = list(tensor.shape)
        self.specs.append((name, shape, GROUP, True, DTYPES[tensor.dtype]))
        if tensor.dtype == torch.float64:
            self.specs.append((f"state/low/{name}", [2, *shape], GROUP, True, "F32"))

    def place(self, placement: Sequence[tuple[str, int, int]]) -> None:
        """Where the tensors of the job's model lie in the array: name, offset, size."""
        self._places = {name: (offset, size) for name, offset, size in placement}

    @torch.no_grad()
    def store(self, flat: np.ndarray, step: int, beside: Mapping[str, Any] | None = None) -> None:
        """Writes what there is now, before that step, and `beside`: plain values and tensors. OverflowError if there is more
        than there is room for: than the parts held at first."""
        array = torch.from_numpy(flat)
        for name, parameter in self._parameters.items():
            self._store(array, name, parameter)
        tree, large = _split({name: part.state_dict() for name, part in self._parts.items()},
                             lambda path, tensor: self._fits(path, tensor))
        for path, tensor in large.items():
            self._store(array, path, tensor)
        tree[_BESIDE] = dict(beside or {})
        self._store_blob(array, _dumped(tree), step)

    @torch.no_grad()
    def load(self, flat: np.ndarray) -> tuple[int, dict[str, Any]]:
        """Gives model and parts what `store` has written there, on whichever worker. Returns the step, and what was beside the
        parts."""
        array = torch.from_numpy(np.array(flat, copy=True))
        for name, parameter in self._parameters.items():
            parameter.copy_(self._value(array, name, parameter.shape, parameter.dtype))
        step, blob = self._blob(array)
        tree = _filled(_parsed(blob), lambda path, shape, dtype: self._value(array, path, shape, dtype))
        beside = tree.pop(_BESIDE, {})
        if set(tree) != set(self._parts):
            raise ValueError(f"the job's state has {sorted(tree)}, this worker {sorted(self._parts)}: optimizer, scheduler and "
                             "also= are to be the same at all workers")
        for name, part in self._parts.items():
            part.load_state_dict(tree[name])
        return step, beside

    def _fits(self, path: str, tensor: torch.Tensor) -> bool:
        place = self._places.get(path)
        return place is not None and place[1] == tensor.numel() and (
            tensor.dtype != torch.float64 or f"state/low/{path}" in self._places)

    def _store(self, array: torch.Tensor, name: str, tensor: torch.Tensor) -> None:
        offset, size = self._places[name]
        values = tensor.detach().reshape(-1).cpu()
        high = values.float()
        array[offset:offset + size].copy_(high)
        if tensor.dtype == torch.float64:
            low = values - high.double()
            middle = low.float()
            offset, _ = self._places[f"state/low/{name}"]
            array[offset:offset + size].copy_(middle)
            array[offset + size:offset + 2 * size].copy_((low - middle.double()).float())

    def _value(self, array: torch.Tensor, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        offset, size = self._places[name]
        values = array[offset:offset + size]
        if dtype == torch.float64:
            low, _ = self._places[f"state/low/{name}"]
            values = values.double() + (array[low:low + size].double() + array[low + size:low + 2 * size].double())
        return values.reshape(tuple(shape)).to(dtype)

    def _store_blob(self, array: torch.Tensor, data: bytes, step: int) -> None:
        offset, size = self._places[BLOB]
        room = 2 * (size - _HEAD_FLOATS)
        if len(data) > room:
            raise OverflowError(f"the state beside parameters and large tensors has {len(data)} bytes, and had room for {room} "
                                "when the job began")
        words = np.frombuffer(data + b"\0" * (len(data) % 2), np.uint16)
        target = array[offset:offset + size].numpy()
        target[:_NUMBER_FLOATS], target[_NUMBER_FLOATS:_HEAD_FLOATS] = _pieces(len(data)), _pieces(step)
        target[_HEAD_FLOATS:_HEAD_FLOATS + len(words)] = words
        target[_HEAD_FLOATS + len(words):] = 0

    def _blob(self, array: torch.Tensor) -> tuple[int, bytes]:
        offset, size = self._places[BLOB]
        return _unpacked(array[offset:offset + size].numpy())


def states_in(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The states of the parts, by their names, in an export of a job's state. ValueError if it has none."""
    if BLOB not in tensors:
        raise ValueError(f"there is no {BLOB}: the export was made without --state, or of a job whose server has the optimizer")

    def value_of(path: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        values = tensors[path].reshape(-1)
        if dtype == torch.float64:
            low = tensors[f"state/low/{path}"].reshape(2, -1).double()
            values = values.double() + (low[0] + low[1])
        return values.reshape(tuple(shape)).to(dtype)

    return dict(_filled(_parsed(_unpacked(tensors[BLOB].float().numpy())[1]), value_of))


def _unpacked(values: np.ndarray) -> tuple[int, bytes]:
    """Step and bytes of a blob."""
    room = 2 * (len(values) - _HEAD_FLOATS)
    length, step = _number_of(values[:_NUMBER_FLOATS]), _number_of(values[_NUMBER_FLOATS:_HEAD_FLOATS])
    if not 0 < length <= room:
        raise ValueError(f"the job's state says that its rest has {length} bytes, there is room for {room}")
    return step, values[_HEAD_FLOATS:].astype(np.uint16).tobytes()[:length]


def _pieces(number: int) -> list[int]:
    return [number >> (16 * piece) & 0xFFFF for piece in range(_NUMBER_FLOATS)]


def _number_of(pieces: np.ndarray) -> int:
    return sum(int(value) << (16 * piece) for piece, value in enumerate(pieces))


def _tried(parameters: Mapping[str, torch.nn.Parameter], parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """The states of the parts as they are after a step of the optimizers, which copies of them make."""
    optimizers = {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
    copies: dict[str, torch.optim.Optimizer]
    _, copies = copy.deepcopy((list(parameters.values()), optimizers))
    states = {name: part.state_dict() for name, part in parts.items()}
    for name, optimizer in copies.items():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        # Of its class: schedulers replace the method of the optimizer that they were made for. And below what torch puts around
        # it, which calls the script's hooks.
        step = type(optimizer).step
        getattr(step, "__wrapped__", step)(optimizer, *_closure(optimizer))
        states[name] = optimizer.state_dict()
    return states


def _closure(optimizer: torch.optim.Optimizer) -> tuple[Callable[[], torch.Tensor], ...]:
    return (lambda: torch.zeros(()),) if isinstance(optimizer, torch.optim.LBFGS) else ()


def _split(states: dict[str, Any], fits: Callable[[str, torch.Tensor], bool] | None = None) -> tuple[Any, dict[str, torch.Tensor]]:
    """The states with placeholders for their large tensors, and those by their paths."""
    large: dict[str, torch.Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            if (value.numel() < _SMALL or value.dtype not in DTYPES or not value.is_floating_point() or value.is_sparse
                    or not bool(value.isfinite().all()) or (fits is not None and not fits(path, value))):
                return value
            large[path] = value
            return {_PLACEHOLDER: path, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if isinstance(value, Mapping):
            return {key: walk(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            walked = [walk(item, f"{path}/{number}") for number, item in enumerate(value)]
            return tuple(walked) if isinstance(value, tuple) else walked
        return value

    return walk(states, GROUP), large


def _filled(tree: Any, value_of: Callable[[str, Sequence[int], torch.dtype], torch.Tensor]) -> Any:
    """The reverse of `_split`."""
    if isinstance(tree, dict):
        if _PLACEHOLDER in tree:
            return value_of(tree[_PLACEHOLDER], tree["shape"], getattr(torch, tree["dtype"]))
        return {key: _filled(item, value_of) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(item, value_of) for item in tree)
    return tree


def _dumped(tree: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(tree, stream)
    return stream.getvalue()


def _parsed(data: bytes) -> dict[str, Any]:
    # Nothing that comes from another process is executed.
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def stateful(name: str, part: Any) -> Stateful:
    """`part`, if it has a state. TypeError otherwise."""
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part
    raise TypeError(f"{name} is a {type(part).__name__}; expected something with state_dict and load_state_dict")


def named(parts: Mapping[str, Any]) -> Iterator[tuple[str, Stateful]]:
    """The parts, each checked."""
    for name, part in parts.items():
        if name == _BESIDE:
            raise ValueError(f"also[{name!r}]: the state has other things under that name")
        yield name, stateful(f"also['{name}']", part)
