"""A worker that is a group of processes, such as those of one machine over NCCL or gloo: its first one, the leader, is
what the job knows; each computes its share of every batch, and the leader pushes their mean."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import recon
from recon._leases import Batch
from recon.torch._tensors import _tensor_of

# What a worker's core says, to all members, as its leader's has said it.
_SAID = ("size", "groups", "name", "begun", "revision")
_ASKED = ("placement", "job", "next_work", "open_split", "begin", "pull", "begin_evaluation", "send_initial_values")
# What only the leader's core is told.
_TOLD = ("close_split", "forget_lease", "drop", "end_evaluation", "abandon", "pause", "resume", "leave", "close")


class Members:
    """The processes of ``group``; all of them make the same calls in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group that join() was given")
        self._group = group
        self._leader = dist.get_global_rank(group, 0)
        self._device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def relay(self, call: Callable[[], Any]) -> Any:
        """What the leader's call returns, or raises, at all members."""
        said: list[Any] = [None]
        error: BaseException | None = None
        if self.leads:
            try:
                said[0] = ("", call())
            except Exception as raised:  # noqa: BLE001: it is raised below, when the others know.
                error, said[0] = raised, (type(raised).__name__, str(raised))
        dist.broadcast_object_list(said, self._leader, group=self._group)
        if error is not None:
            raise error
        kind, value = said[0]
        if kind:
            raise _error_of(kind)(value)
        return value

    def core(self, make: Callable[[], Any]) -> Any:
        """The worker's core, which the leader makes, as every member may use it."""
        made: list[Any] = []
        self.relay(lambda: made.append(make()))
        return _Core(self, made[0] if made else None)

    def share_of(self, batch: Batch) -> Sequence[int]:
        """The samples of a batch that are this member's; of a batch with fewer than members some have none."""
        return batch.indices[self.rank::self.size]

    def samples_of(self, batch: Batch) -> Sequence[int]:
        """Those, or one that does not count: a forward and a backward need something."""
        own = self.share_of(batch)
        return own if len(own) > 0 else batch.indices[:1]

    def _weight(self, batches: Sequence[Batch]) -> float:
        return sum(len(self.share_of(batch)) for batch in batches) / sum(batch.samples for batch in batches)

    def reduce(self, flat: np.ndarray, batches: Sequence[Batch]) -> None:
        """The mean of all members' over the samples of these batches, at the leader."""
        values = torch.from_numpy(flat)
        values *= self._weight(batches)
        there = values.to(self._device)
        dist.reduce(there, self._leader, group=self._group)
        if self.leads and there is not values:
            values.copy_(there)

    @torch.no_grad()
    def mean_gradients(self, parameters: Sequence[torch.nn.Parameter], batches: Sequence[Batch]) -> None:
        """The same of gradients, at all members."""
        weight = self._weight(batches)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
            parameter.grad *= weight
            there = parameter.grad.to(self._device)
            dist.all_reduce(there, group=self._group)
            if there is not parameter.grad:
                parameter.grad.copy_(there)

    def broadcast(self, flat: np.ndarray) -> None:
        """The leader's values, into those of the others."""
        values = _tensor_of(flat)
        there = values.to(self._device)
        dist.broadcast(there, self._leader, group=self._group)
        if not self.leads and there is not values:
            values.copy_(there)


class _Core:
    """The leader's core, at every member; the others have no connection to the job."""

    def __init__(self, members: Members, core: Any) -> None:
        self._members, self._core = members, core
        self.step = 0
        # Where the others keep what the leader's core has.
        size = members.relay(lambda: core.size)
        self._gradient, self._values = (np.zeros(size if core is None else 0, np.float32) for _ in range(2))

    def __getattr__(self, name: str) -> Any:
        if name in _SAID:
            return self._members.relay(lambda: getattr(self._core, name))
        if name in _ASKED:
            return lambda *values: self._members.relay(lambda: getattr(self._core, name)(*values))
        if name in _TOLD:
            return lambda *values: getattr(self._core, name)(*values) if self._core is not None else None
        raise AttributeError(name)

    def end(self, *values: Any) -> None:
        def end() -> int:
            self._core.end(*values)
            return self._core.step
        self.step = self._members.relay(end)

    def gradient(self) -> np.ndarray:
        return self._gradient if self._core is None else self._core.gradient()

    def parameters(self) -> np.ndarray:
        flat = [self._values] if self._core is None else []
        self._members.relay(lambda: flat.append(self._core.parameters()))
        self._members.broadcast(flat[0])
        return flat[0]


def _error_of(kind: str) -> type[Exception]:
    """An error of this package's or Python's, by its name."""
    found = getattr(recon, kind, getattr(builtins, kind, None))
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
