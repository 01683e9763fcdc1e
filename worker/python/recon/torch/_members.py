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
from recon import _announced, _objects
from recon._leases import Batch
from recon.torch._buckets import Buckets
from recon.torch._tensors import _tensor_of

_BUCKET_BYTES = 25e6

# What a worker's core says, to all members, as its leader's has said it.
_SAID = ("size", "groups", "name", "begun", "revision")
_ASKED = ("placement", "job", "next_work", "open_split", "begin", "pull", "settle", "begin_evaluation", "send_initial_values")
# What only the leader's core is told.
_TOLD = ("close_split", "forget_lease", "drop", "end_evaluation", "abandon", "pause", "resume", "leave", "close")


class Members:
    """The processes of ``group``; all of them make the same calls in the same order."""

    def __init__(self, group: dist.ProcessGroup, model: torch.nn.Module) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group that join() was given")
        self._group = group
        self._leader = dist.get_global_rank(group, 0)
        self._device = torch.device("cpu")
        if dist.get_backend(group) == "nccl":
            self._device = next((one.device for one in model.parameters() if one.device.type == "cuda"), self._device)
            if self._device.type != "cuda":
                raise ValueError("join() was given a group over NCCL and a model that is on no GPU")
        self._batch: Batch | None = None  # Which is computed.
        self._buckets: Buckets | None = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, **what: Any) -> None:
        """`recon.Refused`, at all members, where they do not say the same."""
        said = self._all_gather({name: repr(value) for name, value in what.items()})
        for rank, other in enumerate(said):
            wrong = [name for name in what if other[name] != said[0][name]]
            if wrong:
                raise recon.Refused(f"the processes of a group differ: process {rank} has another {wrong[0]} than process 0: "
                                    f"{other[wrong[0]][:200]}, not {said[0][wrong[0]][:200]}")

    def relay(self, name: str, call: Callable[[], Any]) -> Any:
        """What the leader's call returns, or raises, at all members."""
        data, error, value = b"", None, None
        if self.leads:
            try:
                value = call()
                data = _objects.encode((name, "", value))
            except Exception as raised:  # noqa: BLE001: it is raised below, when the others know.
                error, data = raised, _objects.encode((name, type(raised).__name__, str(raised)))
        content = self._broadcast_bytes(data)
        if error is not None:
            raise error
        if self.leads:
            return value
        leaders, kind, value = _objects.decode(content, sender="the first process of this worker's group")
        if leaders != name:
            raise RuntimeError(f"the first process of this worker's group is at '{leaders}', this one at '{name}': all of them "
                               "go through the loader, step(), state_dict(), pull() and leave() together")
        if kind:
            raise _error_of(kind)(value)
        return value

    # Values travel as bytes in tensors: torch's own calls for objects would unpickle what others send.

    def _all_gather(self, value: Any) -> list[Any]:
        """All members' values, by rank."""
        data = _objects.encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)], device=self._device), group=self._group)
        counts = [int(size) for size in sizes]
        names = [f"process {rank} of this worker's group" for rank in range(self.size)]
        _announced.check(counts, 1, names)
        parts = [torch.empty(max(counts), dtype=torch.uint8, device=self._device) for _ in counts]
        own = torch.frombuffer(bytearray(data.ljust(max(counts), b"\0")), dtype=torch.uint8).to(self._device)
        dist.all_gather(parts, own, group=self._group)
        return [_objects.decode(part.cpu().numpy().tobytes()[:count], sender=name)
                for name, part, count in zip(names, parts, counts)]

    def _broadcast_bytes(self, data: bytes) -> bytes:
        """The leader's."""
        size = torch.tensor([len(data)], device=self._device)
        dist.broadcast(size, self._leader, group=self._group)
        _announced.check([int(size)], 1, ["the first process of this worker's group"])
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device) if self.leads else \
            torch.empty(int(size), dtype=torch.uint8, device=self._device)
        dist.broadcast(content, self._leader, group=self._group)
        return content.cpu().numpy().tobytes()

    def core(self, make: Callable[[], Any]) -> Any:
        """The worker's core, which the leader makes, as every member may use it."""
        made: list[Any] = []
        self.relay("join", lambda: made.append(make()))
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

    # Gradients are those of the whole batch when backward ends, so that whatever looks at them before step() (clipping, a
    # GradScaler) sees the same at all members.

    def exchange(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """From here on, of these."""
        self._buckets = Buckets(parameters, _BUCKET_BYTES, self)

    def stop(self) -> None:
        """Gradients are each process' own again."""
        if self._buckets is not None:
            self._buckets.remove()

    def begin(self, batch: Batch) -> None:
        """What backward is of, until it is of the next one."""
        self._batch = batch
        if self._buckets is not None:
            self._buckets.reset()

    def begin_backward(self) -> bool:
        return self._batch is not None

    def mean(self, flat: torch.Tensor) -> Callable[[], bool]:
        assert self._batch is not None, "begin_backward() has looked"
        weight = self._weight([self._batch])
        # What was accumulated before is the same at all members, and their weights make 1.
        flat.mul_(weight) if weight > 0 else flat.zero_()
        return self._all_reduce(flat, dist.ReduceOp.SUM)

    def somewhere(self, present: torch.Tensor) -> Callable[[], bool]:
        return self._all_reduce(present, dist.ReduceOp.MAX)

    def end_backward(self) -> None:
        pass

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> Callable[[], bool]:
        there = tensor.to(self._device)
        work = dist.all_reduce(there, op, group=self._group, async_op=True)

        def wait() -> bool:
            work.wait()
            if there is not tensor:
                tensor.copy_(there)
            return True
        return wait

    @torch.no_grad()
    def mean_buffers(self, buffers: Sequence[torch.Tensor], batches: Sequence[Batch]) -> None:
        """Of floating point: those of integers are the same at all members."""
        own = [buffer for buffer in buffers if buffer.is_floating_point()]
        if not own:
            return
        flat = torch.cat([buffer.reshape(-1).float() for buffer in own])
        weight = self._weight(batches)
        flat.mul_(weight) if weight > 0 else flat.zero_()
        self._all_reduce(flat, dist.ReduceOp.SUM)()
        for buffer, part in zip(own, flat.split([one.numel() for one in own])):
            buffer.copy_(part.view(buffer.shape))

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
        size = members.relay("size", lambda: core.size)
        self._gradient, self._values = (np.zeros(size if core is None else 0, np.float32) for _ in range(2))

    def __getattr__(self, name: str) -> Any:
        if name in _SAID:
            return self._members.relay(name, lambda: getattr(self._core, name))
        if name in _ASKED:
            return lambda *values: self._members.relay(name, lambda: getattr(self._core, name)(*values))
        if name in _TOLD:
            return lambda *values: getattr(self._core, name)(*values) if self._core is not None else None
        raise AttributeError(name)

    def end(self, *values: Any) -> None:
        def end() -> int:
            self._core.end(*values)
            return self._core.step
        self.step = self._members.relay("end", end)

    def gradient(self) -> np.ndarray:
        return self._gradient if self._core is None else self._core.gradient()

    def parameters(self) -> np.ndarray:
        flat = [self._values] if self._core is None else []
        self._members.relay("parameters", lambda: flat.append(self._core.parameters()))
        self._members.broadcast(flat[0])
        return flat[0]


def _error_of(kind: str) -> type[Exception]:
    """An error of this package's or Python's, by its name."""
    found = getattr(recon, kind, getattr(builtins, kind, None))
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
