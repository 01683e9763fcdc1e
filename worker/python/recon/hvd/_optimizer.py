"""An optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ._context import ProcessSet, context, world
from ._ops import Adasum, Average, Compression, Handle, Op, Sum, TopK, reduce_async, wire_of
from ._sparse import SparseSums

# Gradients up to so many bytes travel in one call.
_BUCKET_BYTES = 1 << 20


class _Bucket:
    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.waiting = 0  # Parameters without gradient in this step.
        self.handle: Handle | None = None


def _buckets(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Neighbors of one type and device, the last parameters first: their gradients come first."""
    made: list[list[torch.Tensor]] = []
    for parameter in reversed(parameters):
        last = made[-1] if made else []
        if (last and last[0].dtype == parameter.dtype and last[0].device == parameter.device and
                (sum(p.numel() for p in last) + parameter.numel()) * parameter.element_size() <= _BUCKET_BYTES):
            last.append(parameter)
        else:
            made.append([parameter])
    return made


def _given_groups(parameters: list[torch.Tensor], groups: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    named = [list(group) for group in groups]
    ids = [id(p) for group in named for p in group]
    if len(set(ids)) != len(ids) or not set(ids) <= {id(p) for p in parameters}:
        raise ValueError("groups has a parameter twice, or one that the optimizer does not have")
    return [*_buckets([p for p in parameters if id(p) not in set(ids)]), *named[::-1]]


def _hook(gradients: weakref.ref[_Gradients], bucket: _Bucket) -> Callable[[torch.Tensor], None]:
    def made(parameter: torch.Tensor) -> None:
        them = gradients()
        if them is not None:
            them.made(parameter, bucket)
    return made


def _remove_all(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


class _Gradients:
    """The gradients of an optimizer, reduced while backward() makes others.

    Buckets go out in one order on all ranks, whatever the order in which backward() makes them ready, under names that
    no other optimizer's have: ``name`` says what is their own.
    """

    def __init__(self, name: str, buckets: list[list[torch.Tensor]], passes: int, dense: bool, process_set: ProcessSet,
                 start: Callable[[list[torch.Tensor], str, str], Handle]) -> None:
        self.name = name
        self._buckets = [_Bucket(bucket) for bucket in buckets]
        self._passes, self._dense, self._set, self._start = passes, dense, process_set, start
        self._left: dict[int, int] = {}  # Passes until a parameter's gradient is whole.
        self._next = 0  # Of the buckets, which goes out next.
        self._lock = threading.RLock()  # backward() has a thread for each device.
        self._hooks: list[Any] = []
        self.reset()
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), bucket)))
        # Parameters live longer than their optimizers.
        self._remove = weakref.finalize(self, _remove_all, self._hooks)

    def retire(self) -> None:
        """Looks no longer at what backward() makes. Its name is that of whoever has its parameters now."""
        self._remove()
        self.name += ", retired"

    def set_passes(self, passes: int) -> None:
        if self.under_way():
            raise ValueError("set_backward_passes_per_step() between backward() and step(): gradients are under way")
        self._passes = passes
        self.reset()

    def reset(self) -> None:
        self._next = 0
        for bucket in self._buckets:
            bucket.handle, bucket.waiting = None, len(bucket.parameters)
            for parameter in bucket.parameters:
                self._left[id(parameter)] = self._passes

    def under_way(self) -> bool:
        return self._next > 0

    def made(self, parameter: torch.Tensor, bucket: _Bucket) -> None:
        """The parameter's gradient is there, of one more pass. Any thread calls it."""
        if not self._set.included():
            return
        if parameter.grad is not None and parameter.grad.is_sparse and not self._dense:
            raise ValueError("a gradient is sparse: say sparse_as_dense=True")
        with self._lock:
            if self._left[id(parameter)] <= 0:
                raise AssertionError(
                    "a gradient was computed more often than backward_passes_per_step since the last step()")
            self._left[id(parameter)] -= 1
            if self._left[id(parameter)] > 0:
                return
            bucket.waiting -= 1
            while self._next < len(self._buckets) and self._buckets[self._next].waiting == 0:
                self._go_out()

    def _go_out(self) -> None:
        bucket, name = self._buckets[self._next], f"gradients {self._next + 1} of {len(self._buckets)} of {self.name}"
        self._next += 1
        gradients = []
        for parameter in bucket.parameters:
            if parameter.grad is None:  # Not used by this rank's loss.
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
            gradients.append(parameter.grad)
        bucket.handle = self._start(gradients, name, f"gradients of {self.name}")

    def synchronize(self) -> None:
        try:
            with self._lock:
                while self._next < len(self._buckets):
                    self._go_out()
            # All of them, also after an error: names that are under way cannot be used again.
            errors = []
            for bucket in self._buckets:
                assert bucket.handle is not None
                try:
                    bucket.handle.wait()
                except Exception as error:  # noqa: BLE001: the first one is raised.
                    errors.append(error)
            if errors:
                raise errors[0]
        finally:
            self.reset()


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class."""

    _gradients: _Gradients | None
    _name: str
    _retired: bool
    _sparse: SparseSums | None
    _set: ProcessSet
    _op: Op

    def synchronize(self) -> None:
        """Waits until each parameter's ``grad`` is that of all ranks: before clipping, say, with
        `skip_synchronize()` around `step()`."""
        if self._gradients is not None and self._set.included():
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step()` takes the gradients as they are."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How often backward() is called before step(), from the next step on."""
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def retire(self, parameters: set[int]) -> None:
        """Another one has its parameters from now on, if any of these (ids) is its own."""
        if any(id(parameter) in parameters for group in self.param_groups for parameter in group["params"]):  # type: ignore
            self._retired = True
            if self._gradients is not None:
                self._gradients.retire()

    def abandon(self) -> None:
        """Forgets calls under way, after an error."""
        if self._gradients is not None:
            self._gradients.reset()
        if self._sparse is not None:
            self._sparse.forget()
        self._synchronized = False

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        if self._gradients is not None and self._gradients.under_way():
            raise AssertionError("zero_grad() between backward() and step(): gradients are under way")
        if self._gradients is not None:
            self._gradients.reset()  # Nothing has gone out: those passes do not count.
        super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronizes and steps. Of a ``closure``, after each call of it."""
        if self._op is Adasum:
            return self._step_adasum(closure)
        if closure is not None:
            return super().step(lambda: self._synchronized_loss(closure))  # type: ignore[misc]
        if not self._skip:
            if self._synchronized:
                warnings.warn("step() after synchronize() synchronizes again: say skip_synchronize()", stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step()  # type: ignore[misc]

    def _synchronized_loss(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        self._synchronized = False
        return loss

    def _step_adasum(self, closure: Callable[[], Any] | None) -> Any:
        # The paper's way for optimizers with state: not gradients are combined but what each rank's step changes.
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]  # type: ignore
        before = [p.detach().clone() for p in parameters]
        result = super().step(closure)  # type: ignore[misc]
        if not self._set.included():
            return result
        with torch.no_grad():
            moved = [p.detach() - old for p, old in zip(parameters, before)]
            combined = reduce_async(moved, None, Adasum, f"movement of {self._name}", "", 1.0, 1.0, self._set).wait()
            for parameter, old, movement in zip(parameters, before, combined):
                parameter.copy_(old + movement)
        return result


def _check_names(optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]]) -> None:
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        raise ValueError("named_parameters has a name twice")
    known = {id(p) for _, p in named}
    unnamed = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if named and unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's parameters")


def _free_name(process_set: ProcessSet, names: Sequence[str]) -> str:
    """Under which an optimizer's calls go that has parameters of these names, or of none. Optimizers that have the same
    are numbered in the order in which ranks make them; one whose parameters another has now does not count."""
    of = f"'{names[0]}' to '{names[-1]}' ({zlib.crc32(repr(list(names)).encode()):08x})" if names else "optimizer"

    def taken() -> set[str]:
        return {other._name for other in list(context.optimizers) if other._set is process_set and not other._retired}

    if f"{of} 1" in taken():
        gc.collect()  # Whoever is not there any more is not on any rank.
    used = taken()
    return next(name for name in (f"{of} {number}" for number in itertools.count(1)) if name not in used)


def DistributedOptimizer(  # noqa: N802: Horovod's name.
        optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        compression: Any = Compression.none, backward_passes_per_step: int = 1, op: Op = Average,
        gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: int | Sequence[Sequence[torch.Tensor]] | None = None, sparse_as_dense: bool = False,
        process_set: ProcessSet = world) -> torch.optim.Optimizer:
    """The same optimizer object, whose `step()` from now on takes the gradients of all ranks.

    Gradients travel while backward() makes others, after ``backward_passes_per_step`` passes, whose sum is what
    counts. ``named_parameters`` say on all ranks which optimizer of several this is, in whatever order they make them.
    Optimizers without names, or with the same ones, are numbered: all ranks make them in one order, and drop each before
    the same next one. A parameter that a rank's loss does not use counts there with zeros. ``num_groups`` or ``groups``
    (lists of parameters, or a number) say which gradients travel together. Parameters that another optimizer has had are
    this one's from now on; that one reduces them at its step() only. With ``op=Adasum`` each rank's optimizer steps by
    itself, and what that changes is combined. ValueError for names or groups that do not fit the optimizer.
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor goes with op=Average only")
    if groups is not None and num_groups:
        raise ValueError("give groups or num_groups, not both")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}, expected 1 or more")
    largest = isinstance(compression, TopK)
    if largest and op not in (Average, Sum):
        raise ValueError(f"Compression.topk() goes with op=Average and op=Sum, not with {op}")
    wire = "" if largest else wire_of(compression)
    if isinstance(groups, int):
        groups, num_groups = None, groups
    if op is Adasum and (wire or groups or num_groups or backward_passes_per_step > 1):
        raise ValueError("op=Adasum goes without compression, groups and backward_passes_per_step")
    if isinstance(optimizer, Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    named = list(named_parameters or [])
    _check_names(optimizer, named)
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if groups is not None:
        buckets = _given_groups(parameters, groups)
    elif num_groups:
        size = -(-len(parameters) // num_groups)
        buckets = [parameters[at:at + size] for at in range(0, len(parameters), size)][::-1]
    else:
        buckets = _buckets(parameters)

    before, after = 1.0 / gradient_predivide_factor, gradient_predivide_factor
    sparse = SparseSums(compression, op, before, after, process_set) if largest else None

    def start(gradients: list[torch.Tensor], name: str, order: str) -> Handle:
        return reduce_async(gradients, gradients, op, name, wire, before, after, process_set, order)

    own = {id(p) for p in parameters}
    for other in list(context.optimizers):
        other.retire(own)
    made: Any = optimizer
    made.__dict__.pop("step", None)  # A scheduler's wrapper of the step that there was.
    made.__class__ = type(type(optimizer).__name__, (Distributed, type(optimizer)), {})
    made._set, made._op, made._skip, made._synchronized, made._retired = process_set, op, False, False, False
    made._sparse = sparse
    made._name = _free_name(process_set, [name for name, p in named if id(p) in own])
    made._gradients = None if op is Adasum else _Gradients(made._name, buckets, backward_passes_per_step, sparse_as_dense,
                                                             process_set, start if sparse is None else sparse.start)
    context.optimizers.add(made)
    return made
