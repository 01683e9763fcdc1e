"""recon as a backend of torch.distributed.

    import recon.torch.distributed
    torch.distributed.init_process_group("recon")        # RECON_SERVER says where recon-server is

Tensors on a GPU go by way of the host. What a call needs of a rank that has died ends with an error that names it,
on all others, instead of hanging.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from recon import collective

_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "mean", dist.ReduceOp.MIN: "min", dist.ReduceOp.MAX: "max",
        dist.ReduceOp.PRODUCT: "product"}


def _op(opts: Any) -> str:
    op = opts.reduceOp
    for known, name in _OPS.items():
        if op == known:
            return name
    raise RuntimeError(f"recon has no reduction {op}: there are {', '.join(_OPS.values())}")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, or a copy that a call can read and write."""
    return tensor.detach().cpu().contiguous()


class _Work(c10d.Work):
    """Calls under way that are one to torch. The group's thread ends it: DDP waits in C++ for a future that somebody has
    to set. A future's own work would not raise what has failed."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._tensors = result
        self._future: Future = Future()
        self._ended = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._ended.set()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if timeout else None
        if not self._ended.wait(seconds or None):
            raise collective.CallTimeout(f"no outcome within {seconds:g} s")
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        return self._tensors

    def get_future(self) -> Future:
        return self._future


def _complete(calls: queue.SimpleQueue, timeout: float) -> None:
    while (call := calls.get()) is not None:
        handles, finish, work = call
        try:
            for handle in handles:
                handle.wait(timeout)
            if finish is not None:
                finish()
            work.end(None)
        except Exception as error:  # noqa: BLE001: the waiter's to raise.
            work.end(error)


class ProcessGroup(dist.ProcessGroup):
    """One of torch's groups as a fixed set of recon's."""

    def __init__(self, set_name: str, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout.total_seconds()
        self._group = collective.Group(set_name, rank=rank, size=size, member=f"rank {rank}", timeout=self._timeout)
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        # Ends calls in their order.
        threading.Thread(target=_complete, args=(self._calls, self._timeout), name="recon-calls", daemon=True).start()

    def getBackendName(self) -> str:
        return "recon"

    def name(self) -> str:
        return "recon"

    @property
    def _device_types(self) -> list[torch.device]:
        """Whose tensors it takes; torch's own groups know it of the backends that they are made of. None before torch knows
        the group: it would attach a recorder of calls to it, which needs such a backend."""
        if self not in dist.distributed_c10d._world.pg_names:
            return []
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def shutdown(self) -> None:
        self._calls.put(None)
        self._group.close()

    def abort(self) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # torch's destroy_process_group() drops the group without a word.
        if hasattr(self, "_calls"):
            self.shutdown()

    def _work(self, handles: list[collective.Handle], result: Any, finish: Callable[[], None] | None = None) -> Any:
        work = _Work(result)
        self._calls.put((handles, finish, work))
        return work

    def _reduced(self, tensors: list[torch.Tensor], op: str) -> tuple[list, Callable[[], None]]:
        handles, copies = [], []
        for tensor in tensors:
            dense = _dense(tensor)
            handles.append(self._group.all_reduce(dense, op, out=dense, async_op=True))
            if dense.data_ptr() != tensor.data_ptr():
                copies.append((tensor, dense))
        return handles, lambda: [to.detach().copy_(dense) for to, dense in copies]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = c10d.AllreduceOptions()) -> Any:
        handles, finish = self._reduced(tensors, _op(opts))
        return self._work(handles, tensors, finish)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = c10d.AllreduceCoalescedOptions()) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = c10d.ReduceOptions()) -> Any:
        handles, copies = [], []
        for tensor in tensors:
            dense = _dense(tensor)
            result = torch.empty_like(dense)
            handles.append(self._group.reduce(dense, opts.rootRank, _op(opts), out=result, async_op=True))
            if self.rank() == opts.rootRank:
                copies.append((tensor, result))
        return self._work(handles, tensors, lambda: [to.detach().copy_(value) for to, value in copies])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = c10d.BroadcastOptions()) -> Any:
        handles, copies = [], []
        for tensor in tensors:
            dense = _dense(tensor)
            handles.append(self._group.broadcast(dense, opts.rootRank, out=dense, async_op=True))
            if dense.data_ptr() != tensor.data_ptr():
                copies.append((tensor, dense))
        return self._work(handles, tensors, lambda: [to.detach().copy_(dense) for to, dense in copies])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                  opts: Any = c10d.AllgatherOptions()) -> Any:
        handles, copies = [], []
        for into, tensor in zip(outputs, inputs):
            whole, handle = self._gathered(tensor, [to.numel() for to in into])
            handles.append(handle)
            copies.extend(zip(into, whole.split([to.numel() for to in into])))
        return self._work(handles, outputs, lambda: [to.detach().copy_(part.view(to.shape)) for to, part in copies])

    def _gathered(self, tensor: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, collective.Handle]:
        # Whatever its type, it travels as bytes.
        dense = _dense(tensor).reshape(-1)
        width = dense.element_size()
        handle = self._group.all_gather(dense.view(torch.uint8), sizes=[size * width for size in sizes], async_op=True)
        return handle._result.view(dense.dtype), handle

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = c10d.AllgatherOptions()) -> Any:
        whole, handle = self._gathered(tensor, [tensor.numel()] * self.size())
        return self._work([handle], output, lambda: output.detach().copy_(whole.view(output.shape)))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = c10d.AllgatherOptions()) -> Any:
        pairs = [(output, *self._gathered(tensor, [tensor.numel()] * self.size()))
                 for output, tensor in zip(outputs, inputs)]
        return self._work([handle for _, _, handle in pairs], outputs,
                          lambda: [output.detach().copy_(whole.view(output.shape)) for output, whole, _ in pairs])

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]],
                       opts: Any = c10d.ReduceScatterOptions()) -> Any:
        handles, copies = [], []
        for output, parts in zip(outputs, inputs):
            whole = torch.cat([_dense(part).reshape(-1) for part in parts])
            handle = self._group.reduce_scatter(whole, _op(opts), sizes=[part.numel() for part in parts], async_op=True)
            handles.append(handle)
            copies.append((output, handle._result))
        return self._work(handles, outputs,
                          lambda: [to.detach().copy_(part.view(to.shape)) for to, part in copies])

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor,
                              opts: Any = c10d.ReduceScatterOptions()) -> Any:
        return self.reduce_scatter([output], [list(tensor.reshape(-1).chunk(self.size()))], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = c10d.ReduceScatterOptions()) -> Any:
        return self.reduce_scatter(outputs, [list(tensor.reshape(-1).chunk(self.size())) for tensor in inputs], opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
               opts: Any = c10d.GatherOptions()) -> Any:
        handles, copies = [], []
        for index, tensor in enumerate(inputs):
            dense = _dense(tensor).reshape(-1)
            into = outputs[index] if self.rank() == opts.rootRank else []
            sizes = [to.numel() for to in into] or [dense.numel()] * self.size()
            handle = self._group.gather(dense.view(torch.uint8), opts.rootRank, async_op=True,
                                        sizes=[size * dense.element_size() for size in sizes])
            handles.append(handle)
            if into:
                copies.extend(zip(into, handle._result.view(dense.dtype).split(sizes)))
        return self._work(handles, outputs, lambda: [to.detach().copy_(part.view(to.shape)) for to, part in copies])

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]],
                opts: Any = c10d.ScatterOptions()) -> Any:
        handles, copies = [], []
        for index, output in enumerate(outputs):
            received = torch.empty(output.numel(), dtype=output.dtype).view(torch.uint8)
            parts = [_dense(part).reshape(-1).view(torch.uint8) for part in inputs[index]] \
                if self.rank() == opts.rootRank else []
            handles.append(self._group.scatter(torch.cat(parts) if parts else None, opts.rootRank, out=received,
                                               sizes=[part.numel() for part in parts], async_op=True))
            copies.append((output, received))
        return self._work(handles, outputs,
                          lambda: [to.detach().copy_(b.view(to.dtype).view(to.shape)) for to, b in copies])

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                 opts: Any = c10d.AllToAllOptions()) -> Any:
        sent = torch.cat([_dense(tensor).reshape(-1) for tensor in inputs])
        handle, received = self._exchanged(sent, [t.numel() for t in inputs], [t.numel() for t in outputs])
        parts = list(zip(outputs, received.split([t.numel() for t in outputs])))
        return self._work([handle], outputs, lambda: [to.detach().copy_(part.view(to.shape)) for to, part in parts])

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: list[int] | None,
                          input_sizes: list[int] | None, opts: Any = c10d.AllToAllOptions()) -> Any:
        def counts(whole: torch.Tensor, rows: list[int] | None) -> list[int]:
            if not rows:
                return [whole.numel() // self.size()] * self.size()
            return [row * (whole.numel() // max(1, whole.shape[0])) for row in rows]

        handle, received = self._exchanged(_dense(tensor).reshape(-1), counts(tensor, input_sizes),
                                           counts(output, output_sizes))
        return self._work([handle], output, lambda: output.detach().copy_(received.view(output.shape)))

    alltoall_base = all_to_all_single

    def _exchanged(self, sent: torch.Tensor, to: list[int], back: list[int]) -> tuple[collective.Handle, torch.Tensor]:
        width = sent.element_size()
        received = torch.empty(sum(back), dtype=sent.dtype)
        handle = self._group._run("all_to_all", collective._Memory(sent.view(torch.uint8)), received.view(torch.uint8),
                                  True, in_counts=[count * width for count in to],
                                  out_counts=[count * width for count in back], shape=f" of {sent.dtype}")
        return handle, received

    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Any:
        return self._work([self._group.barrier(async_op=True)], None)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        return self._work([self._group.send(_dense(tensor).reshape(-1).view(torch.uint8), to, tag=tag, async_op=True)
                           for tensor in tensors], tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        received = [torch.empty(tensor.numel(), dtype=tensor.dtype) for tensor in tensors]
        handles = [self._group.recv(buffer.view(torch.uint8), source, tag=tag, async_op=True) for buffer in received]
        return self._work(handles, tensors, lambda: [to.detach().copy_(part.view(to.shape))
                                                     for to, part in zip(tensors, received)])


def _create(options: Any, _backend_options: Any = None) -> ProcessGroup:
    store, rank, size = options.store, options.group_rank, options.group_size
    # The sets of two runs, and of two groups of one run, have different names.
    if rank == 0:
        store.set("recon/set", f"torch-{uuid.uuid4()}")
    return ProcessGroup(store.get("recon/set").decode(), rank, size, options.timeout)


def register() -> None:
    """Makes "recon" known to torch.distributed; importing this module has done it."""
    if "recon" not in dist.Backend.backend_list:
        dist.Backend.register_backend("recon", _create, extended_api=True, devices=["cpu", "cuda"])


register()
