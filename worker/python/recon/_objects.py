"""Values of Python as bytes, and back: the one file of this package that knows pickles.

Whoever decodes a pickle runs what its sender wrote into it. So what comes from another process is no pickle, unless the
receiver has said otherwise (`recon.hvd.init(pickle=True)`): `encode` writes JSON, which says what there is, and the bytes
of tensors and arrays behind it. `decode` builds from it only the types that are named below, and calls nothing of the
sender's. Tensors come back on the CPU.
"""

from __future__ import annotations

import collections
import io
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import recon

_PLAIN = b"recon-value-1\n"
_PICKLE = b"recon-pickle-1\n"
_REFUSAL = b"recon-refusal-1\n"
_HEAD = struct.Struct("<QQ")  # Bytes of the JSON, and of what comes behind it.
_DEPTH_MAX = 100
_WHAT_TRAVELS = ("tensors, NumPy arrays, None, bool, int, float, complex, str, bytes, list, tuple, dict, set, range, and what "
                 "state_dict()s are made of")
_WAY_OUT = ("Send what it is made of (its state_dict(), or vars() of it); or let all ranks take pickles, which run their "
            "sender's code: recon.hvd.init(pickle=True) or RECON_ALLOW_PICKLE=1, with a server that wants a secret")
_LEAVES = frozenset((type(None), bool, int, float, str))
_FACTORIES: dict[str, Any] = {"": None, **{one.__name__: one for one in (bool, int, float, str, list, tuple, dict, set)}}
# Of NumPy: numbers, text and times; no objects and no records.
_ARRAYS = re.compile(r"[<>|=]?([?biufcSU]\d*|[mM]8(\[\w{1,4}\])?)", re.ASCII)
# Of torch: types whose values are their bytes.
_TENSORS = re.compile(r"bool|u?int(8|16|32|64)|b?float\d+(_\w+)?|complex(64|128)", re.ASCII)


def encode(value: Any, pickles: bool = False) -> bytes:
    """What `decode` makes the value of again. TypeError, which names the first part that cannot travel, its place and the way
    out; where ``pickles`` is set, the whole value is pickled instead. ValueError for a value that contains itself."""
    try:
        writer = _Writer()
        tree = json.dumps(writer.tree(value, "the value", 0), separators=(",", ":")).encode()
    except TypeError:
        if not pickles:
            raise
        stream = io.BytesIO()
        _torch().save(value, stream)
        return _PICKLE + stream.getvalue()
    return b"".join([_PLAIN, _HEAD.pack(len(tree), writer.size), tree, *writer.pieces])


def encode_refusal(why: str) -> bytes:
    """In place of a value that could not be encoded, for those who wait for it: `decode` raises it."""
    return _REFUSAL + why.encode(errors="replace")


def decode(data: bytes, pickles: bool = False, sender: str = "another process") -> Any:
    """The value. ValueError for bytes that `encode` has not written, `recon.Refused` where the sender could not send it, and for
    a pickle, unless ``pickles`` says that this process takes them. ``sender`` is for errors."""
    if data.startswith(_REFUSAL):
        raise recon.Refused(f"{sender} could not send its value: {data[len(_REFUSAL):][:2000].decode(errors='replace')}")
    if data.startswith(_PICKLE):
        if not pickles:
            raise recon.Refused(f"{sender} has sent a pickle, which would run its sender's code here, and this process takes "
                                "none. If that is meant, say so at all ranks: recon.hvd.init(pickle=True) or "
                                "RECON_ALLOW_PICKLE=1")
        return _torch().load(io.BytesIO(data[len(_PICKLE):]), map_location="cpu", weights_only=False)
    try:
        return _Reader(data).value()
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError, RecursionError, struct.error) as error:
        raise ValueError(f"{sender} has sent {len(data)} bytes that are no value of this package: {error}") from None


def _torch() -> Any:
    import torch

    return torch


class _Writer:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def tree(self, value: Any, where: str, depth: int) -> Any:
        """JSON for it: plain values are themselves, all others a list that begins with what they are."""
        kind = type(value)
        if kind in _LEAVES:
            return value
        if depth > _DEPTH_MAX:
            raise ValueError(f"{where[:200]} is more than {_DEPTH_MAX} levels deep, or contains itself")
        if kind in (list, tuple, set, frozenset):
            if all(type(one) in _LEAVES for one in value):  # Indices of samples, say: there may be millions.
                return [kind.__name__, list(value)]
            return [kind.__name__, [self.tree(one, f"{where}[{at}]", depth + 1) for at, one in enumerate(value)]]
        if isinstance(value, dict):
            return self.mapping(value, where, depth)
        if kind is bytes or kind is bytearray:
            return [kind.__name__, *self.keep(bytes(value))]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        if kind is collections.deque:
            return ["deque", [self.tree(one, f"{where}[{at}]", depth + 1) for at, one in enumerate(value)], value.maxlen]
        if kind is np.ndarray or isinstance(value, np.generic):
            return self.array(value, where)
        made = self.of_torch(value, where) if "torch" in sys.modules else None
        if made is None:
            raise self.foreign(value, where)
        return made

    def mapping(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        pairs = [[self.tree(key, f"a key of {where}", depth + 1), self.tree(one, f"{where}[{key!r}]", depth + 1)]
                 for key, one in value.items()]
        if kind in (dict, collections.Counter):
            return [kind.__name__, pairs]
        if kind is collections.OrderedDict:  # A module's says of which versions its parts are.
            return [kind.__name__, pairs, self.tree(getattr(value, "_metadata", None), f"{where}._metadata", depth + 1)]
        if kind is collections.defaultdict:
            for name, factory in _FACTORIES.items():
                if value.default_factory is factory:
                    return [kind.__name__, pairs, name]
        raise self.foreign(value, where)

    def array(self, value: Any, where: str) -> Any:
        if _ARRAYS.fullmatch(value.dtype.str) is None:
            raise TypeError(f"{where} is a NumPy value of type {value.dtype}, which cannot travel. {_WAY_OUT}")
        kind = "ndarray" if isinstance(value, np.ndarray) else "scalar"
        return [kind, value.dtype.str, list(value.shape), *self.keep(value.tobytes())]

    def of_torch(self, value: Any, where: str) -> Any:
        torch = _torch()
        kind = type(value)
        if kind is torch.Size:
            return ["Size", list(value)]
        if kind is torch.dtype or kind is torch.device:
            return [kind.__name__, str(value).removeprefix("torch.")]
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            return None
        name = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided or value.device.type == "meta" or _TENSORS.fullmatch(name) is None:
            raise TypeError(f"{where} is a tensor of type {name} and layout {value.layout} on {value.device}, which cannot "
                            "travel: send a dense one, with values")
        own = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = (torch.view_as_real(own) if own.is_complex() else own).reshape(-1).view(torch.uint8)
        return [kind.__name__, name, list(value.shape), value.requires_grad, *self.keep(flat.numpy().tobytes())]

    def keep(self, content: bytes) -> tuple[int, int]:
        at = self.size
        self.pieces.append(content)
        self.size += len(content)
        return at, len(content)

    def foreign(self, value: Any, where: str) -> TypeError:
        kind = type(value)
        return TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot travel: {_WHAT_TRAVELS} can. "
                         f"{_WAY_OUT}")


class _Reader:
    def __init__(self, data: bytes) -> None:
        if not data.startswith(_PLAIN):
            raise ValueError("they do not begin as one does")
        at = len(_PLAIN) + _HEAD.size
        tree, self.size = _HEAD.unpack(data[len(_PLAIN):at])
        if at + tree + self.size != len(data):
            raise ValueError(f"their beginning speaks of {at + tree + self.size} bytes")
        self.json = data[at:at + tree]
        self.content = memoryview(data)[at + tree:]
        self.made: dict[str, Callable[..., Any]] = {
            "list": self.several(list), "tuple": self.several(tuple), "set": self.several(set),
            "frozenset": self.several(frozenset), "dict": self.mapping, "Counter": self.counter,
            "OrderedDict": self.ordered, "defaultdict": self.defaulted, "deque": self.queue, "complex": _complex,
            "range": _range, "bytes": self.bytes_of, "bytearray": lambda _, at, size: bytearray(self.part(at, size)),
            "ndarray": self.array, "scalar": self.scalar, "Size": _size, "dtype": _dtype, "device": _device,
            "Tensor": self.tensor, "Parameter": self.parameter}

    def value(self) -> Any:
        return self.of(json.loads(self.json), 0)

    def of(self, tree: Any, depth: int) -> Any:
        if not isinstance(tree, (list, dict)):
            return tree
        if depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} levels")
        if not isinstance(tree, list) or not tree or tree[0] not in self.made:
            raise ValueError("something of a kind that there is not")
        return self.made[tree[0]](depth, *tree[1:])

    def each(self, depth: int, parts: list[Any]) -> Iterator[Any]:
        return (self.of(part, depth + 1) if isinstance(part, (list, dict)) else part for part in _list(parts))

    def several(self, kind: type) -> Callable[..., Any]:
        return lambda depth, parts: kind(self.each(depth, parts))

    def mapping(self, depth: int, pairs: list[Any]) -> dict[Any, Any]:
        return {self.of(key, depth + 1): self.of(one, depth + 1) for key, one in _list(pairs)}

    def counter(self, depth: int, pairs: list[Any]) -> Any:
        return collections.Counter(self.mapping(depth, pairs))

    def ordered(self, depth: int, pairs: list[Any], metadata: Any) -> Any:
        made: Any = collections.OrderedDict(self.mapping(depth, pairs))
        if metadata is not None:
            made._metadata = self.of(metadata, depth + 1)
        return made

    def defaulted(self, depth: int, pairs: list[Any], factory: str) -> Any:
        return collections.defaultdict(_FACTORIES[factory], self.mapping(depth, pairs))

    def queue(self, depth: int, parts: list[Any], most: int | None) -> Any:
        return collections.deque(self.each(depth, parts), most)

    def part(self, at: int, size: int) -> memoryview:
        if not (_is_count(at) and _is_count(size) and at + size <= self.size):
            raise ValueError(f"a part of {size} bytes at {at} of {self.size}")
        return self.content[at:at + size]

    def bytes_of(self, _: int, at: int, size: int) -> bytes:
        return bytes(self.part(at, size))

    def array(self, _: int, name: str, shape: list[int], at: int, size: int) -> Any:
        if _ARRAYS.fullmatch(name) is None:
            raise ValueError("an array of a type that cannot travel")
        dtype = np.dtype(name)
        _check_size(shape, dtype.itemsize, size)
        return np.frombuffer(bytearray(self.part(at, size)), dtype, math.prod(shape)).reshape(shape) if size else \
            np.empty(shape, dtype)

    def scalar(self, depth: int, name: str, shape: list[int], at: int, size: int) -> Any:
        return self.array(depth, name, shape, at, size)[()]

    def tensor(self, _: int, name: str, shape: list[int], needs_gradient: bool, at: int, size: int) -> Any:
        torch = _torch()
        dtype = getattr(torch, name) if _TENSORS.fullmatch(name) is not None else None
        if not isinstance(dtype, torch.dtype):
            raise ValueError("a tensor of a type that cannot travel")
        _check_size(shape, dtype.itemsize, size)
        made = torch.empty(shape, dtype=dtype)
        if size:
            flat = (torch.view_as_real(made) if dtype.is_complex else made).reshape(-1).view(torch.uint8)
            flat.numpy()[:] = np.frombuffer(self.part(at, size), np.uint8)
        return made.requires_grad_() if needs_gradient is True else made

    def parameter(self, depth: int, name: str, shape: list[int], needs_gradient: bool, at: int, size: int) -> Any:
        return _torch().nn.Parameter(self.tensor(depth, name, shape, False, at, size), requires_grad=needs_gradient is True)


def _list(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise ValueError("no list where one is due")
    return parts


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 62


def _check_size(shape: Any, width: int, size: Any) -> None:
    if not all(_is_count(one) for one in _list(shape)) or math.prod(shape) * width != size:
        raise ValueError("an array whose shape is not that of its bytes")


def _complex(_: int, real: float, imaginary: float) -> complex:
    return complex(real, imaginary)


def _range(_: int, start: int, stop: int, step: int) -> range:
    return range(start, stop, step)


def _size(_: int, shape: list[int]) -> Any:
    return _torch().Size(_list(shape))


def _dtype(_: int, name: str) -> Any:
    torch = _torch()
    found = getattr(torch, name) if re.fullmatch(r"\w+", name) else None
    if not isinstance(found, torch.dtype):
        raise ValueError("a type of tensors that there is not")
    return found


def _device(_: int, name: str) -> Any:
    return _torch().device(name)


# What `recon.ray.Job` runs in its workers' processes is the driver's own function. It goes from the driver to its actors
# by Ray, which pickles everything itself, and from an actor to the process that it has started through a pipe of the two.
# Nothing that any other process has sent is in it.
RUN_PROGRAM = "import pickle, sys; pickle.load(sys.stdin.buffer)()"


def encode_program(function: Callable[[], Any]) -> bytes:
    """What RUN_PROGRAM takes on standard input. Whatever Ray's cloudpickle raises for a function that cannot be sent."""
    from ray import cloudpickle

    return cloudpickle.dumps(function)
