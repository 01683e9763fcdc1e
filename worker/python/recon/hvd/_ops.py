"""Operations on tensors. All members of a process set call the same ones. Calls of one ``name`` match, whatever other
calls come between them, from any thread; of those without a name the first `allreduce` of each member is one call, the
second one another, and so on for each operation and process set. A name is one call's at a time: `recon.Refused` says
so, and to all where calls of one name differ, with both sides. Whoever waits for longer than a minute
(RECON_STALL_SECONDS) says on stderr which calls wait for whom.

Tensors may be on a GPU and then go by way of the host. Where a tensor needs gradients, the blocking operations that
give new ones are differentiable. Errors: `HorovodInternalError` where somebody has gone, ValueError and
`recon.Refused` for calls that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from recon import adasum

from ._context import ProcessSet, world


class Op:
    """How values are combined."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


Average, Sum, Min, Max, Product, Adasum = map(Op, ("mean", "sum", "min", "max", "product", "adasum"))


class TopK:
    """Of each bucket of gradients only the ``fraction`` (above 0, to 1) that is largest travels, and the rest is kept for
    the next step. `DistributedOptimizer`'s alone, of Average and Sum. A rank sends 8 bytes for each such value, and
    gets as many from each other rank. All ranks take part in each step: not with `join`, which ends the others' step with
    `HorovodInternalError`, nor with ``on_loss="shrink"``, which is refused. ValueError for another fraction."""

    def __init__(self, fraction: float) -> None:
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction is {fraction}, expected more than 0, and 1 at most")
        self.fraction = fraction


class Compression:
    """In what form float32 values travel. They are summed in float32 all the same."""

    topk = TopK

    class none:  # noqa: N801: Horovod's name.
        wire = ""

    class fp16:  # noqa: N801
        wire = "fp16"

    class bf16:  # noqa: N801
        wire = "bf16"

    class int8:  # noqa: N801
        """A byte a value and a scale for each 256 values, of Sum and Average."""
        wire = "int8"


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
    def forward(ctx: Any, run: Callable, back: Callable, *tensors: torch.Tensor) -> Any:
        ctx.back = back
        results = run(tensors)
        ctx.mark_non_differentiable(*(result for result in results if not result.is_floating_point()))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        return (None, None, *ctx.back([gradient.contiguous() for gradient in gradients]))


def with_gradients(tensors: Sequence[torch.Tensor], run: Callable, back: Callable) -> list[torch.Tensor]:
    """What ``run(tensors)`` makes of them, one of each; ``back(gradients)`` of these makes those of the tensors. Of
    integers both count for nothing. All members have the same ones, whatever gradient each needs."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Differentiable.apply(run, back, *tensors))
    return run(tensors)


def floating(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that have gradients."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def in_places(tensors: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """What was made of `floating` ones, where they are among all."""
    each = iter(made)
    return [next(each) if tensor.is_floating_point() else None for tensor in tensors]


def host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def back_name(name: str | None) -> str | None:
    """Of the call for the gradient of one with this name."""
    return f"{name} (gradient)" if name else None


def chosen_op(op: Op | None, average: bool | None) -> Op:
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        return Average if average else Sum
    return Average if op is None else op


# Reductions.


def reduce_async(tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None, op: Op, name: str | None,
                 wire: str, prescale: float, postscale: float, process_set: ProcessSet, order: str = "") -> Handle:
    """One call for each type among the tensors, whose values travel together. Results are new tensors, or in
    ``into``; each has the shape, type and device of its tensor. ``order`` as `recon.collective.Group` has it."""
    by_type: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(index)
    results: list[Any] = [None] * len(tensors)
    calls, flats = [], []
    with process_set.call(with_all=op is Adasum) as group:
        for number, (dtype, indices) in enumerate(by_type.items()):
            of_type = f"{name} ({str(dtype).removeprefix('torch.')})" if name and number else name or ""
            flat = torch.cat([host(tensors[index]).reshape(-1) for index in indices])
            if prescale != 1.0:
                flat = (flat * prescale).to(dtype)
            flats.append((indices, flat))
            if op is Adasum:
                parts = flat.split([tensors[index].numel() for index in indices])
                flat.copy_(torch.cat(adasum.all_reduce_many(group, parts, of_type)))
            else:
                calls.append(group.all_reduce(flat, op.name, out=flat, wire=wire if dtype == torch.float32 else "",
                                              name=of_type, order=order, async_op=True))

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
    return _one(reduce_async([tensor], None, chosen_op(op, average), name, "", prescale_factor, postscale_factor, process_set))


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = world) -> Handle:
    """Into the tensor itself, by the time of `synchronize`."""
    return _one(reduce_async([tensor], [tensor], chosen_op(op, average), name, "", prescale_factor, postscale_factor,
                             process_set))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
              op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = world) -> torch.Tensor:
    """A new tensor of the same shape: over all members the Average (the default), Sum, Min, Max, Product or Adasum.
    Values are multiplied by ``prescale_factor`` before and by ``postscale_factor`` after."""
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set)[0]


def wire_of(compression: Any) -> str:
    if not hasattr(compression, "wire"):
        raise ValueError(f"{compression} is no compression: there are Compression.none, .fp16, .bf16 and .int8, and "
                         ".topk() of a DistributedOptimizer")
    return compression.wire


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: Op | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = world) -> torch.Tensor:
    """Into the tensor itself, which it returns."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                            op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = world) -> Handle:
    """As `grouped_allreduce`."""
    return reduce_async(tensors, None, chosen_op(op, average), name, "", prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                             op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = world) -> Handle:
    """Into the tensors themselves."""
    return reduce_async(tensors, tensors, chosen_op(op, average), name, "", prescale_factor, postscale_factor, process_set)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      compression: Any = Compression.none, op: Op | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = world) -> list[torch.Tensor]:
    """Several tensors, those of one type in one call."""
    chosen, wire = chosen_op(op, average), wire_of(compression)

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return reduce_async(values, None, chosen, name, wire, prescale_factor, postscale_factor, process_set).wait()

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        if chosen not in (Average, Sum):
            raise NotImplementedError(f"no gradient of allreduce {chosen}")
        made = reduce_async(floating(gradients), None, chosen, back_name(name), wire, prescale_factor, postscale_factor,
                            process_set).wait()
        return in_places(gradients, made)

    return with_gradients(tensors, run, back)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                       op: Op | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = world) -> list[torch.Tensor]:
    """Into the tensors themselves."""
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()
