"""JAX over recon's collectives: pytrees that are reduced over processes, and optax optimizers that step with the
gradients of all.

    import recon.jax
    recon.jax.init()                                       # RECON_SERVER, RECON_RANK and RECON_SIZE say where and who
    params = recon.jax.broadcast(params)                   # rank 0's
    optimizer = recon.jax.distributed(optax.adam(1e-3))
    updates, state = optimizer.update(grads, state, params)        # also in jax.jit

All processes call the same in the same order. Arrays on the CPU are read by DLPack, without a copy; those on a GPU go
by way of the host. Within `jax.jit` a call is an ordered `io_callback`, which JAX has for computations on one device;
arrays that are sharded over several are gathered outside of it only. After a loss `leave()`, then `init()`, begin anew
with those who are there. Errors are those of `recon.collective`; within
`jax.jit` JAX raises its own, with their text.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from recon._ranks import Everybody
from recon.collective import Group

__all__ = ["all_reduce", "broadcast", "distributed", "init", "leave", "rank", "size"]

_everybody = Everybody("jax")


def init(name: str | None = None, timeout: float = 600.0) -> Group:
    """Joins the job's set of all processes (``name``, RECON_SET, or "jax") and waits for the others: for the size
    that the launcher says (RECON_RANK and RECON_SIZE, mpirun, srun, torchrun), or RECON_MIN_SIZE of them. The other
    functions do so where it was not called. `recon.JobLost` after ``timeout`` seconds."""
    return _everybody.join(name, timeout)


def leave() -> None:
    """Leaves it. Do so before the program ends: others then hear why."""
    _everybody.leave()


def rank() -> int:
    return init().rank


def size() -> int:
    return init().size


def all_reduce(tree: Any, op: str = "mean", *, group: Group | None = None, wire: str = "") -> Any:
    """A pytree of the same structure, shapes and types: each leaf reduced over all processes by "mean", "sum", "min",
    "max", "product" or "adasum". ``wire="fp16"`` or "bf16" halves what travels of float32. ``group``: another set than
    that of all."""
    return _over_leaves(functools.partial(_reduced, group or init(), op, wire), tree)


def broadcast(tree: Any, root: int = 0, *, group: Group | None = None) -> Any:
    """Rank ``root``'s leaves; those of others say structure, shapes and types."""
    return _over_leaves(functools.partial(_sent, group or init(), root), tree)


def distributed(optimizer: Any, op: str = "mean", *, group: Group | None = None, wire: str = "") -> Any:
    """An optax optimizer that reduces the gradients over all processes and gives the result to ``optimizer``."""
    import optax
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return inner.update(all_reduce(updates, op, group=group, wire=wire), state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _over_leaves(run: Any, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        shapes = [jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves]
        results = io_callback(run, shapes, leaves, ordered=True)
    else:
        results = [_as(leaf, value) for leaf, value in zip(leaves, run(leaves))]
    return jax.tree.unflatten(structure, results)


def _host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and leaf.dtype != jax.numpy.bfloat16 and leaf.is_fully_addressable \
            and next(iter(leaf.devices())).platform == "cpu" and len(leaf.devices()) == 1:
        return np.from_dlpack(leaf)
    # Python's values travel as the type that JAX gives them.
    return np.asarray(jax.device_get(leaf), jax.dtypes.result_type(leaf))  # NumPy has no bfloat16 of its own to take by DLPack.


def _as(leaf: Any, value: np.ndarray) -> Any:
    return jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else jax.numpy.asarray(value)


def _reduced(group: Group, op: str, wire: str, leaves: Sequence[Any]) -> list[np.ndarray]:
    arrays = [_host(leaf) for leaf in leaves]
    if op == "adasum":
        return [group.all_reduce(array, op) for array in arrays]
    # All are under way before the first one is waited for.
    handles = [group.all_reduce(array, op, wire=wire if array.dtype == np.float32 else "", async_op=True)
               for array in arrays]
    return [handle.wait() for handle in handles]


def _sent(group: Group, root: int, leaves: Sequence[Any]) -> list[np.ndarray]:
    handles = [group.broadcast(_host(leaf), root, async_op=True) for leaf in leaves]
    return [handle.wait() for handle in handles]
