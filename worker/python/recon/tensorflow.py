"""TensorFlow and Keras over recon's collectives: a gradient tape whose gradients are the means of all processes, an
optimizer for `Model.fit`, and callbacks.

    import recon.tensorflow as rtf
    rtf.init()                                             # RECON_SERVER, RECON_RANK and RECON_SIZE say where and who
    with tf.GradientTape() as tape:
        loss = ...
    tape = rtf.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)     # also in tf.function

    model.compile(rtf.DistributedOptimizer(keras.optimizers.Adam()), ..., jit_compile=False)
    model.fit(..., callbacks=[rtf.BroadcastGlobalVariables(0), rtf.MetricAverage()])

All processes call the same in the same order. Tensors go by way of the host's memory. Within `tf.function` a call is
`tf.numpy_function`, which XLA (``jit_compile=True``) does not have. After a loss `leave()`, then `init()`, begin anew
with those who are there. Errors are those of `recon.collective`; within
`tf.function` TensorFlow raises its own, with their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from recon._ranks import Everybody
from recon.collective import Group

__all__ = ["BroadcastGlobalVariables", "BroadcastGlobalVariablesCallback", "DistributedGradientTape",
           "DistributedOptimizer", "MetricAverage", "MetricAverageCallback", "all_reduce", "all_reduce_many",
           "broadcast_variables", "init", "leave", "rank", "size"]

_everybody = Everybody("tensorflow")


def init(name: str | None = None, timeout: float = 600.0) -> Group:
    """Joins the job's set of all processes (``name``, RECON_SET, or "tensorflow") and waits for the others: for the
    size that the launcher says (RECON_RANK and RECON_SIZE, mpirun, srun, torchrun), or RECON_MIN_SIZE of them. The
    other functions do so where it was not called. `recon.JobLost` after ``timeout`` seconds."""
    return _everybody.join(name, timeout)


def leave() -> None:
    """Leaves it. Do so before the program ends: others then hear why."""
    _everybody.leave()


def rank() -> int:
    return init().rank


def size() -> int:
    return init().size


def all_reduce(tensor: Any, op: str = "mean", *, group: Group | None = None, wire: str = "") -> Any:
    """A tensor of the same shape and type: the "mean", "sum", "min", "max", "product" or "adasum" over all processes.
    ``wire="fp16"`` or "bf16" halves what travels of float32. ``group``: another set than that of all."""
    return all_reduce_many([tensor], op, group=group, wire=wire)[0]


def all_reduce_many(tensors: Sequence[Any], op: str = "mean", *, group: Group | None = None, wire: str = "") -> list[Any]:
    """Several tensors; they travel at the same time."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    chosen = group or init()

    def reduce(*arrays: np.ndarray) -> list[np.ndarray]:
        arrays = [np.asarray(array) for array in arrays]
        if op == "adasum":
            return [chosen.all_reduce(array, op) for array in arrays]
        handles = [chosen.all_reduce(array, op, wire=wire if array.dtype == np.float32 else "", async_op=True)
                   for array in arrays]
        return [handle.wait() for handle in handles]

    if not tensors:
        return []
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(result) for result in reduce(*(tensor.numpy() for tensor in tensors))]
    results = tf.numpy_function(reduce, tensors, [tensor.dtype for tensor in tensors])
    for result, tensor in zip(results, tensors):
        result.set_shape(tensor.shape)
    return results


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0, *, group: Group | None = None) -> None:
    """Rank ``root_rank``'s values into the variables of all. Not within tf.function."""
    chosen = group or init()
    handles = [chosen.broadcast(np.asarray(variable.numpy()), root_rank, async_op=True) for variable in variables]
    for variable, handle in zip(variables, handles):
        variable.assign(handle.wait())


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` is reduced over all processes. What has no gradient (None) has none on all
    of them; indexed slices become dense."""

    def __init__(self, tape: tf.GradientTape, op: str = "mean", *, group: Group | None = None, wire: str = "") -> None:
        self._tape, self._op, self._group, self._wire = tape, op, group, wire

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._tape.__exit__(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
        gradients = self._tape.gradient(target, sources, *arguments, **named)
        flat = tf.nest.flatten(gradients)
        return tf.nest.pack_sequence_as(gradients, _reduced(flat, self._op, self._group, self._wire))


def _reduced(gradients: list[Any], op: str, group: Group | None, wire: str) -> list[Any]:
    there = [number for number, gradient in enumerate(gradients) if gradient is not None]
    results = list(gradients)
    for number, result in zip(there, all_reduce_many([gradients[number] for number in there], op, group=group, wire=wire)):
        results[number] = result
    return results


class _Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class."""

    _recon: tuple

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return super().apply(_reduced(list(grads), *self._recon), trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802: as it is called elsewhere.
        optimizer: Any, op: str = "mean", *, group: Group | None = None, wire: str = "") -> Any:
    """The same Keras optimizer, which from now on reduces gradients over all processes before it applies them. The
    model is compiled with ``jit_compile=False``. For `Model.fit`; a loop with a tape takes `DistributedGradientTape`."""
    optimizer.__class__ = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {"_recon": (op, group, wire)})
    return optimizer


class BroadcastGlobalVariables(tf.keras.callbacks.Callback):
    """After the first batch, when all variables exist: rank ``root_rank``'s model and optimizer for all."""

    def __init__(self, root_rank: int = 0, *, group: Group | None = None) -> None:
        super().__init__()
        self._root, self._group, self._sent = root_rank, group, False

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._sent:
            return
        self._sent = True
        variables = [*self.model.variables, *self.model.optimizer.variables]
        broadcast_variables(variables, self._root, group=self._group)


class MetricAverage(tf.keras.callbacks.Callback):
    """What `Model.fit` reports after each pass as the mean over all processes. Give it before callbacks that read it."""

    def __init__(self, *, group: Group | None = None) -> None:
        super().__init__()
        self._group = group

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs:
            names = sorted(name for name, value in logs.items() if np.isscalar(value) or np.ndim(value) == 0)
            means = (self._group or init()).all_reduce(np.array([float(logs[name]) for name in names]), "mean")
            logs.update(zip(names, means.tolist()))


BroadcastGlobalVariablesCallback, MetricAverageCallback = BroadcastGlobalVariables, MetricAverage  # Horovod's names.
