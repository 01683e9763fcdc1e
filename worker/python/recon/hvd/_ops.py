"""Operations on tensors. All members of a process set call the same ones. Calls of one ``name`` match, whatever other
calls come between them, from any thread; of those without a name the first `allreduce` of each member is one call, the
second one another, and so on for each operation and process set. A name is one call's at a time: `recon.Refused` says
so, and to all where calls of one name differ, with both sides. Whoever waits for longer than a minute
(RECON_STALL_SECONDS) says on stderr which calls wait for whom.

Tensors may be on a GPU and then go by way of the host. Where a tensor needs gradients, the blocking operations that
give a new one are differentiable. Errors: `HorovodInternalError` where somebody has gone, ValueError and
`recon.Refused` for calls that cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from recon import adasum

from ._context import HorovodInternalError, ProcessSet, world


class Op:
    """How values are combined."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


Average, Sum, Min, Max, Product, Adasum = map(Op, ("mean", "sum", "min", "max", "product", "adasum"))


class Compression:
    """In what form float32 values travel. They are summed in float32 all the same."""

    class none:  # noqa: N801: Horovod's name.
        wire = ""

    class fp16:  # noqa: N801
        wire = "fp16"

    class bf16:  # noqa: N801
        wire = "bf16"


class Handle:
    """A call under way; `synchronize()` gives its result."""

    def __init__(self, calls: Sequence[Any], process_set: ProcessSet, finish: Callable[[], Any]) -> None:
        self._calls, self._set, self._finish = list(calls), process_set, finish
        self._result: Any = None
        self._finished = False
        self.members = 0  # Who have taken part, when it is done.

    def done(self) -> bool:
        return all(call.done() for call in self._calls)

    def wait(self) -> Any:
        if not self._finished:
            with self._set.call():
                for call in self._calls:
                    call.wait()
                    self.members = call.members
                    self._set.check(self.members)
            self._result, self._finished = self._finish(), True
        return self._result


def poll(handle: Handle) -> bool:
    """Whether `synchronize(handle)` would return at once."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Waits for an asynchronous call, and returns its result."""
    return handle.wait()


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, run: Callable, back: Callable) -> torch.Tensor:
        ctx.back = back
        return run(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return ctx.back(gradient.contiguous()), None, None


def _with_gradient(tensor: torch.Tensor, run: Callable, back: Callable) -> torch.Tensor:
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Differentiable.apply(tensor, run, back)
    return run(tensor)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _back(name: str | None) -> str | None:
    """Of the call for the gradient of one with this name."""
    return f"{name} (gradient)" if name else None


def _op(op: Op | None, average: bool | None) -> Op:
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        return Average if average else Sum
    return Average if op is None else op


# Reductions.


def reduce_async(tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None, op: Op, name: str | None,
                 wire: str, prescale: float, postscale: float, process_set: ProcessSet) -> Handle:
    """One call for each type among the tensors, whose values travel together. Results are new tensors, or in
    ``into``; each has the shape, type and device of its tensor."""
    by_type: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(index)
    results: list[Any] = [None] * len(tensors)
    calls, flats = [], []
    with process_set.call(with_all=op is Adasum) as group:
        for number, (dtype, indices) in enumerate(by_type.items()):
            of_type = f"{name} ({str(dtype).removeprefix('torch.')})" if name and number else name or ""
            flat = torch.cat([_host(tensors[index]).reshape(-1) for index in indices])
            if prescale != 1.0:
                flat = (flat * prescale).to(dtype)
            flats.append((indices, flat))
            if op is Adasum:
                parts = flat.split([tensors[index].numel() for index in indices])
                flat.copy_(torch.cat(adasum.all_reduce_many(group, parts, of_type)))
            else:
                calls.append(group.all_reduce(flat, op.name, out=flat, wire=wire if dtype == torch.float32 else "",
                                              name=of_type, async_op=True))

    def finish() -> list[torch.Tensor]:
        for indices, flat in flats:
            if postscale != 1.0:
                flat = (flat * postscale).to(flat.dtype)
            for index, part in zip(indices, flat.split([tensors[index].numel() for index in indices])):
                to = torch.empty_like(tensors[index]) if into is None else into[index]
                to.detach().copy_(part.view(to.shape))
                results[index] = to
        return results

    return Handle(calls, process_set, finish)


def _one(handle: Handle) -> Handle:
    finish = handle._finish
    handle._finish = lambda: finish()[0]
    return handle


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = world) -> Handle:
    """As `allreduce`; the tensor may be changed at once, as its values are copied."""
    return _one(reduce_async([tensor], None, _op(op, average), name, "", prescale_factor, postscale_factor, process_set))


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = world) -> Handle:
    """Into the tensor itself, by the time of `synchronize`."""
    return _one(reduce_async([tensor], [tensor], _op(op, average), name, "", prescale_factor, postscale_factor,
                             process_set))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
              op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = world) -> torch.Tensor:
    """A new tensor of the same shape: over all members the Average (the default), Sum, Min, Max, Product or Adasum.
    Values are multiplied by ``prescale_factor`` before and by ``postscale_factor`` after."""
    chosen = _op(op, average)

    def run(values: torch.Tensor) -> torch.Tensor:
        return reduce_async([values], None, chosen, name, _wire(compression), prescale_factor, postscale_factor,
                            process_set).wait()[0]

    def back(gradient: torch.Tensor) -> torch.Tensor:
        if chosen not in (Average, Sum):
            raise NotImplementedError(f"no gradient of allreduce {chosen}")
        return reduce_async([gradient], None, chosen, _back(name), _wire(compression), prescale_factor, postscale_factor,
                            process_set).wait()[0]

    return _with_gradient(tensor, run, back)


def _wire(compression: Any) -> str:
    if not hasattr(compression, "wire"):
        raise ValueError(f"{compression} is no compression: there are Compression.none, .fp16 and .bf16")
    return compression.wire


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = world) -> torch.Tensor:
    """Into the tensor itself, which it returns."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                            op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = world) -> Handle:
    """As `grouped_allreduce`."""
    return reduce_async(tensors, None, _op(op, average), name, "", prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                             op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = world) -> Handle:
    """Into the tensors themselves."""
    return reduce_async(tensors, tensors, _op(op, average), name, "", prescale_factor, postscale_factor, process_set)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      compression: Any = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = world) -> list[torch.Tensor]:
    """Several tensors, those of one type in one call."""
    return reduce_async(tensors, None, _op(op, average), name, _wire(compression), prescale_factor, postscale_factor,
                        process_set).wait()


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                       op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = world) -> list[torch.Tensor]:
    """Into the tensors themselves."""
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: Op | None = None,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: ProcessSet = world) -> Handle:
    """As `reducescatter`."""
    chosen, flat = _op(op, None), _host(tensor)
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
    chosen = _op(op, None)

    def run(values: torch.Tensor) -> torch.Tensor:
        return reducescatter_async(values, name, chosen, prescale_factor, postscale_factor, process_set).wait()

    def back(gradient: torch.Tensor) -> torch.Tensor:
        if chosen not in (Average, Sum):
            raise NotImplementedError(f"no gradient of reducescatter {chosen}")
        scale = prescale_factor * postscale_factor / (process_set.size() if chosen is Average else 1)
        return allgather(gradient, _back(name), process_set) * scale

    return _with_gradient(tensor, run, back)


# Operations that move values: as bytes, so that every type can travel.


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _type(tensor: torch.Tensor, shape: Sequence[Any]) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = world) -> Handle:
    """As `allgather`. Returns when the members have told each other their sizes."""
    dense = _host(tensor if tensor.dim() else tensor.reshape(1))
    of, width = _type(dense, ["*", *dense.shape[1:]]), math.prod(dense.shape[1:]) * dense.element_size()
    with process_set.call() as group:
        rows = group.all_gather(torch.tensor([dense.shape[0]]), sizes=[1] * group.size, of=f"rows of {of}",
                                name=name or "").tolist()
        call = group.all_gather(_bytes(dense), sizes=[row * width for row in rows], of=of, name=name or "", async_op=True)
    return Handle([call], process_set, lambda: call.wait().view(dense.dtype).view(sum(rows), *dense.shape[1:])
                  .to(tensor.device))


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = world) -> torch.Tensor:
    """All members' tensors one after another along the first dimension, in which they may differ. A single value
    counts as a row."""
    def back(gradient: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0] if tensor.dim() else 1
        with process_set.call() as group:  # By place: a set may have shrunk.
            place, size = group.ranks.index(group.rank), group.size
        every = allgather(torch.tensor([rows]), _back(name), process_set).tolist()
        if len(every) != size:
            raise HorovodInternalError(f"'{group.name}' has changed between allgather and its gradient")
        first = sum(every[:place])
        total = reduce_async([gradient], None, Sum, _back(name), "", 1.0, 1.0, process_set).wait()[0]
        return total[first:first + rows].reshape(tensor.shape)

    return _with_gradient(tensor, lambda values: allgather_async(values, name, process_set).wait(), back)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = world) -> Handle:
    """Into the tensor itself, by the time of `synchronize`. ``root_rank`` is the job's rank."""
    flat = _host(tensor).reshape(-1)
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
    def back(gradient: torch.Tensor) -> torch.Tensor:
        total = reduce_async([gradient], None, Sum, _back(name), "", 1.0, 1.0, process_set).wait()[0]
        return total if process_set.rank() == process_set.place_of(root_rank) else torch.zeros_like(total)

    return _with_gradient(tensor, lambda values: broadcast_async(values, root_rank, name, process_set).wait(), back)


def alltoall(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
             process_set: ProcessSet = world) -> Any:
    """To each member some rows: equal parts, or as many as ``splits`` says for each. What came for this one, by
    rank; with ``splits`` also how many rows came from each."""
    size = process_set.size()
    if splits is None and tensor.shape[0] % size:
        raise ValueError(f"{tensor.shape[0]} rows do not make {size} equal parts: give splits")
    rows = [tensor.shape[0] // size] * size if splits is None else [int(n) for n in splits]
    if len(rows) != size or sum(rows) != tensor.shape[0] or min(rows) < 0:
        raise ValueError(f"splits are {rows}, expected {size} of them and {tensor.shape[0]} together")
    came: list[int] = []

    def exchange(values: torch.Tensor, counts: list[int], name: str | None) -> list[torch.Tensor]:
        with process_set.call(with_all=True) as group:
            return group.all_to_all(list(_host(values).split(counts)), name=name or "")

    def run(values: torch.Tensor) -> torch.Tensor:
        parts = exchange(values, rows, name)
        came.extend(len(part) for part in parts)
        return torch.cat(parts).to(values.device)

    result = _with_gradient(tensor, run, lambda gradient: torch.cat(exchange(gradient, came, _back(name))).to(gradient.device))
    return result if splits is None else (result, torch.tensor(came, dtype=torch.int32))


def alltoall_async(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
                   process_set: ProcessSet = world) -> Handle:
    """As `alltoall`, which has ended when this returns."""
    result = alltoall(tensor.detach(), splits, name, process_set)
    return Handle([], process_set, lambda: result)


def barrier(process_set: ProcessSet = world) -> None:
    """Returns when all members have called it."""
    with process_set.call() as group:
        Handle([group.barrier(async_op=True)], process_set, lambda: None).wait()


def _numbered(name: str | None, number: int) -> str | None:
    return f"{name} {number + 1}" if name else None


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = world) -> list[torch.Tensor]:
    """`allgather` of each."""
    handles = [allgather_async(tensor, _numbered(name, i), process_set) for i, tensor in enumerate(tensors)]
    return [handle.wait() for handle in handles]


def grouped_reducescatter(tensors: Sequence[torch.Tensor], op: Op | None = None, name: str | None = None,
                          process_set: ProcessSet = world) -> list[torch.Tensor]:
    """`reducescatter` of each."""
    handles = [reducescatter_async(tensor, _numbered(name, i), op, process_set=process_set)
               for i, tensor in enumerate(tensors)]
    return [handle.wait() for handle in handles]


