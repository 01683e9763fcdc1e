"""Horovod's names over recon's collectives: change ``import horovod.torch as hvd`` to

    import recon.hvd as hvd

and start the script with `recon run --workers 4 train.py`, or as many times as there are ranks with RECON_SERVER,
RECON_RANK and RECON_SIZE. HOROVOD.md beside this package says what is the same and what is not.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from . import elastic
from ._batch_norm import SyncBatchNorm
from ._context import HorovodInternalError, HostsUpdatedInterrupt, ProcessSet, context
from ._context import world as global_process_set
from ._functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._movements import (allgather, allgather_async, alltoall, alltoall_async, barrier, broadcast, broadcast_,
                         broadcast_async, broadcast_async_, grouped_allgather, grouped_allgather_async,
                         grouped_reducescatter, grouped_reducescatter_async, reducescatter, reducescatter_async)
from ._ops import (Adasum, Average, Compression, Max, Min, Product, Sum, allreduce, allreduce_, allreduce_async,
                   allreduce_async_, grouped_allreduce, grouped_allreduce_, grouped_allreduce_async,
                   grouped_allreduce_async_, poll, synchronize)
from ._optimizer import DistributedOptimizer

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "Max",
    "Min", "ProcessSet", "Product", "Sum", "SyncBatchNorm", "add_process_set", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async",
    "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "cross_rank", "cross_size", "elastic", "global_process_set",
    "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "init", "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "poll", "rank", "reducescatter",
    "reducescatter_async", "remove_process_set", "shutdown", "size", "synchronize",
]


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None, *,
         server: str | None = None, name: str | None = None, rank: int | None = None, size: int | None = None,
         min_size: int | None = None, on_loss: str | None = None, patience: float = 0.0, timeout: float = 600.0,
         pickle: bool | None = None) -> None:
    """Joins the job ``name`` (RECON_SET, or "hvd") at the server (RECON_SERVER) and waits for the others.

    With a rank and a size, given here or by who has started the process (RECON_RANK and RECON_SIZE, mpirun, srun,
    torchrun), for all of them; else for ``min_size`` processes (RECON_MIN_SIZE, or 1), and more may come. Whoever has
    come first has rank 0. ``process_sets``: sets to begin at once; "dynamic" changes nothing, as they may always be
    added. ``on_loss`` (RECON_ON_LOSS): "raise", or "shrink" to go on without who dies, with means over those who are
    there. ``patience``: seconds until a process that is not heard is lost; ``timeout``: seconds to wait for others, also
    in a call. ``pickle`` (RECON_ALLOW_PICKLE): this process takes objects that are pickles, which run code of their senders,
    and sends them; `recon.Refused` with a server that is open to everybody. A second call does nothing. Errors are `recon.collective.Group`'s, and HorovodInternalError.
    """
    if comm:
        raise ValueError("init(comm=...) is not supported: use process sets")
    # torch loads it for a process' first optimizer, which takes seconds of a processor. From init() on others wait.
    importlib.import_module("torch._dynamo")
    sets = list(process_sets) if process_sets and not isinstance(process_sets, str) else []
    context.begin(sets, {"server": server, "name": name, "rank": rank, "size": size, "min_size": min_size,
                         "on_loss": on_loss, "patience": patience, "timeout": timeout, "pickle": pickle})


def shutdown() -> None:
    """Leaves the job. `init` joins it again."""
    context.end()


def is_initialized() -> bool:
    return context.group is not None


def _number(name: str) -> int:
    if context.group is None:
        raise ValueError("recon.hvd has not been initialized: call init() first")
    return getattr(context, name)


def rank() -> int:
    """This process' number among all, from 0. It may change where processes come and go (`elastic.run`)."""
    return _number("rank")


def size() -> int:
    """The number of processes."""
    return _number("size")


def local_rank() -> int:
    """This process' number among those on its host (RECON_HOST, or the machine's name)."""
    return _number("local_rank")


def local_size() -> int:
    """The number of processes on this host."""
    return _number("local_size")


def cross_rank() -> int:
    """This host's number among those that have a process of this local rank."""
    return _number("cross_rank")


def cross_size() -> int:
    """The number of hosts that have a process of this local rank."""
    return _number("cross_size")


def is_homogeneous() -> bool:
    """Whether all hosts have equally many processes."""
    return bool(_number("homogeneous"))


def join(device: int = -1) -> int:
    """This rank has no more data: the others' reductions go on without it, and their means are over those who take
    part. Returns when all have joined: the rank that came last. ``device`` is not used."""
    _number("rank")
    return context.join()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Begins a set of some ranks. Its members call it, in any order of sets; others may. The first call in it waits
    until all members have."""
    _number("rank")
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    context.add(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends this process' part in a set. Whether there was one; the set of all ranks stays."""
    return context.remove(process_set)


def _absent() -> bool:
    return False


# Horovod's questions about what carries the calls: none of these does.
mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _absent
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _absent
