"""Operations that move values, and `reducescatter`, which gives each member its rows. What `_ops` says holds here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from recon import _announced

from ._context import HorovodInternalError, ProcessSet, world
from ._ops import (Average, Compression, Handle, Op, Sum, back_name, chosen_op, floating, host, in_places, reduce_async,
                   with_gradients)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: Op | None = None,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: ProcessSet = world) -> Handle:
    """As `reducescatter`."""
    chosen, flat = chosen_op(op, None), host(tensor)
    if prescale_factor != 1.0:
        flat = (flat * prescale_factor).to(tensor.dtype)
    with process_set.call(with_all=True) as group:
        call = group.reduce_scatter(flat, chosen.name, name=name or "", async_op=True)

    def finish() -> torch.Tensor:
        result = call.wait()
        return (result if postscale_factor == 1.0 else (result * postscale_factor).to(tensor.dtype)).to(tensor.device)

    return Handle([call], process_set, finish)


def reducescatter(tensor: torch.Tensor, op: Op | None = None, name: str | None = None, compression: Any = Compression.none,
                  process_set: ProcessSet = world, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This member's rows of the Average (the default) or another reduction: equal parts of the first dimension, the
    first ones longer by one where it does not come out even. ``compression`` is not used."""
    return _scattered([tensor], [name], op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], op: Op | None = None, name: str | None = None,
                                process_set: ProcessSet = world, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """As `grouped_reducescatter`."""
    return _together([reducescatter_async(tensor, _numbered(name, number), op, prescale_factor, postscale_factor, process_set)
                      for number, tensor in enumerate(tensors)], process_set)


def grouped_reducescatter(tensors: Sequence[torch.Tensor], op: Op | None = None, name: str | None = None,
                          compression: Any = Compression.none, process_set: ProcessSet = world,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """`reducescatter` of each."""
    names = [_numbered(name, number) for number in range(len(tensors))]
    return _scattered(tensors, names, op, process_set, prescale_factor, postscale_factor)


def _scattered(tensors: Sequence[torch.Tensor], names: Sequence[str | None], op: Op | None, process_set: ProcessSet,
               prescale: float, postscale: float) -> list[torch.Tensor]:
    chosen = chosen_op(op, None)

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return _together([reducescatter_async(value, name, chosen, prescale, postscale, process_set)
                          for value, name in zip(values, names)], process_set).wait()

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        if chosen not in (Average, Sum):
            raise NotImplementedError(f"no gradient of reducescatter {chosen}")
        scale = prescale * postscale / (process_set.size() if chosen is Average else 1)
        given = [back_name(name) for name, gradient in zip(names, gradients) if gradient.is_floating_point()]
        whole = _gathered(floating(gradients), given, process_set).wait()
        return in_places(gradients, [gradient * scale for gradient in whole])

    return with_gradients(tensors, run, back)


def _numbered(name: str | None, number: int) -> str | None:
    return f"{name} {number + 1}" if name else None


def _together(handles: Sequence[Handle], process_set: ProcessSet) -> Handle:
    """Several as one, whose result is the list of theirs."""
    return Handle([call for handle in handles for call in handle._calls], process_set,
                  lambda: [handle._finish() for handle in handles])


# Operations that move values: as bytes, so that every type can travel.


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _type(tensor: torch.Tensor, shape: Sequence[Any]) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = world) -> Handle:
    """As `allgather`. Returns when the members have told each other their sizes."""
    dense = host(tensor if tensor.dim() else tensor.reshape(1))
    of, width = _type(dense, ["*", *dense.shape[1:]]), math.prod(dense.shape[1:]) * dense.element_size()
    with process_set.call() as group:
        rows = group.all_gather(torch.tensor([dense.shape[0]]), sizes=[1] * group.size, of=f"rows of {of}",
                                name=name or "").tolist()
        _announced.check(rows, width, _announced.ranks(group.ranks))
        call = group.all_gather(_bytes(dense), sizes=[row * width for row in rows], of=of, name=name or "", async_op=True)
    return Handle([call], process_set, lambda: call.wait().view(dense.dtype).view(sum(rows), *dense.shape[1:])
                  .to(tensor.device))


def _gathered(tensors: Sequence[torch.Tensor], names: Sequence[str | None], process_set: ProcessSet) -> Handle:
    return _together([allgather_async(tensor, name, process_set) for tensor, name in zip(tensors, names)], process_set)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = world) -> torch.Tensor:
    """All members' tensors one after another along the first dimension, in which they may differ. A single value
    counts as a row."""
    return _all_gathered([tensor], [name], process_set)[0]


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: ProcessSet = world) -> Handle:
    """As `grouped_allgather`. Returns when the members have told each other their sizes."""
    return _gathered(tensors, [_numbered(name, number) for number in range(len(tensors))], process_set)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = world) -> list[torch.Tensor]:
    """`allgather` of each."""
    return _all_gathered(tensors, [_numbered(name, number) for number in range(len(tensors))], process_set)


def _all_gathered(tensors: Sequence[torch.Tensor], names: Sequence[str | None],
                  process_set: ProcessSet) -> list[torch.Tensor]:
    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        own = [tensor for tensor in tensors if tensor.is_floating_point()]
        rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in own]
        name = back_name(names[0])
        with process_set.call() as group:  # By place: a set may have shrunk.
            place, size = group.ranks.index(group.rank), group.size
        every = allgather(torch.tensor([rows]), name, process_set)
        if len(every) != size:
            raise HorovodInternalError(f"'{group.name}' has changed between allgather and its gradient")
        totals = reduce_async(floating(gradients), None, Sum, name, "", 1.0, 1.0, process_set).wait()
        first = every[:place].sum(0).tolist()
        return in_places(gradients, [total[begin:begin + count].reshape(tensor.shape)
                                     for total, begin, count, tensor in zip(totals, first, rows, own)])

    return with_gradients(tensors, lambda values: _gathered(values, names, process_set).wait(), back)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = world) -> Handle:
    """Into the tensor itself, by the time of `synchronize`. ``root_rank`` is the job's rank."""
    flat = host(tensor).reshape(-1)
    with process_set.call() as group:
        call = group.broadcast(flat.view(torch.uint8), process_set.place_of(root_rank), out=flat.view(torch.uint8),
                               of=_type(tensor, tensor.shape), name=name or "", async_op=True)

    def finish() -> torch.Tensor:
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    return Handle([call], process_set, finish)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = world) -> torch.Tensor:
    """Rank ``root_rank``'s values into the tensor, which it returns."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = world) -> Handle:
    """As `broadcast`."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = world) -> torch.Tensor:
    """A new tensor of rank ``root_rank``'s values. All members' tensors have one shape and type."""
    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        total = reduce_async(gradients, None, Sum, back_name(name), "", 1.0, 1.0, process_set).wait()[0]
        return [total if process_set.rank() == process_set.place_of(root_rank) else torch.zeros_like(total)]

    return with_gradients([tensor], lambda values: [broadcast_async(values[0], root_rank, name, process_set).wait()],
                          back)[0]


def alltoall(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
             process_set: ProcessSet = world) -> Any:
    """To each member some rows: equal parts, or as many as ``splits`` says for each. What came for this one, by
    rank; with ``splits`` also how many rows came from each."""
    came: list[int] = []

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        result, counts = _exchange(values[0], _rows_for_each(values[0], splits, process_set), name, process_set).wait()
        came.extend(counts)
        return [result]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [_exchange(gradients[0], came, back_name(name), process_set).wait()[0]]

    result = with_gradients([tensor], run, back)[0]
    return result if splits is None else (result, torch.tensor(came, dtype=torch.int32))


def alltoall_async(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
                   process_set: ProcessSet = world) -> Handle:
    """As `alltoall`. Returns when the members have told each other their sizes."""
    exchange = _exchange(tensor, _rows_for_each(tensor, splits, process_set), name, process_set)

    def finish() -> Any:
        result, came = exchange._finish()
        return result if splits is None else (result, torch.tensor(came, dtype=torch.int32))

    return Handle(exchange._calls, process_set, finish)


def _rows_for_each(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, process_set: ProcessSet) -> list[int]:
    size = process_set.size()
    if splits is None and tensor.shape[0] % size:
        raise ValueError(f"{tensor.shape[0]} rows do not make {size} equal parts: give splits")
    rows = [tensor.shape[0] // size] * size if splits is None else [int(n) for n in splits]
    if len(rows) != size or sum(rows) != tensor.shape[0] or min(rows) < 0:
        raise ValueError(f"splits are {rows}, expected {size} of them and {tensor.shape[0]} together")
    return rows


def _exchange(tensor: torch.Tensor, rows: Sequence[int], name: str | None, process_set: ProcessSet) -> Handle:
    """What came for this member, and how many rows from each."""
    with process_set.call(with_all=True) as group:
        call = group.all_to_all(list(host(tensor).split(list(rows))), name=name or "", async_op=True)

    def finish() -> tuple[torch.Tensor, list[int]]:
        parts = call.wait()
        return torch.cat(parts).to(tensor.device), [len(part) for part in parts]

    return Handle([call], process_set, finish)


def barrier(process_set: ProcessSet = world) -> None:
    """Returns when all members have called it."""
    with process_set.call() as group:
        Handle([group.barrier(async_op=True)], process_set, lambda: None).wait()
