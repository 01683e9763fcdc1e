"""Training that goes on when processes come or go, in Horovod's words.

    state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(state)

A process that starts later calls the same function, gets the state of those with most commits, and takes part. When one
dies, the others go back to their last commit and go on without it; they do not stop for a newcomer before their next
commit() or check_host_updates().
"""

from __future__ import annotations

import copy
import functools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from . import _functions, _ops
from ._context import HorovodInternalError, HostsUpdatedInterrupt, context

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


def run(func: Callable) -> Callable:
    """Decorates the training function, whose first argument is a `State`. No call among processes may come between
    init() and this function."""
    @functools.wraps(func)
    def with_recovery(state: State, *arguments: Any, **named: Any) -> Any:
        if context.meeting is None:
            raise ValueError("recon.hvd has not been initialized: call init() first")
        again = skip_sync = False
        while True:
            try:
                if again:
                    context.meet()
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                # Of two states that do not come from each other, as after a server's restart, the longer one goes on.
                context.worth = max(context.meeting.worths + [1])
                return func(state, *arguments, **named)
            except HorovodInternalError as error:
                print(f"recon.hvd: rank {context.rank} goes back to its last commit: {error}", file=sys.stderr, flush=True)
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            again = True
    return with_recovery


class State:
    """What processes have in common. Subclasses say how it is kept and sent: save, restore, sync."""

    def __init__(self, **_: Any) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """To call when rank and size may be others, before `sync`: to set a learning rate, say."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the state as it is for `restore`, then `check_host_updates`."""
        self.save()
        context.worth += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt, on all processes at once, if somebody has come or gone. One small call."""
        assert context.meeting is not None, "init() comes before"
        call = _ops.allreduce_async(torch.tensor([int(context.meeting.changed)]), op=_ops.Max)
        changed = bool(call.wait())
        # Somebody has left the work and waits for the others, or has died, and was not missed.
        left = call.members < context.size and call.members < context.size - len(context.joined())
        if changed or left:
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        """Back to the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """To the state of the lowest rank with most commits; saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: something to do when processes have come or gone."""


class ObjectState(State):
    """Python values as attributes: ``ObjectState(batch=0, epoch=0)``. They are copied deeply, and sent as
    `broadcast_object` does it."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._kept: dict[str, Any] = {}
        ObjectState.save(self)

    def save(self) -> None:
        self._kept = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        for name, value in self._kept.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        root = context.meeting.senior if context.meeting is not None else 0
        if self._names:
            values = _functions.broadcast_object({name: getattr(self, name) for name in self._names}, root)
            if not isinstance(values, dict) or set(values) != set(self._names):
                raise ValueError(f"rank {root} has sent a state of other values than {sorted(self._names)}: all ranks are to "
                                 "give the same names")
            for name, value in values.items():
                setattr(self, name, value)
        self.save()


class TorchState(ObjectState):
    """Modules, optimizers, samplers and other things that have ``state_dict()``, beside Python values:
    ``TorchState(model, optimizer, sampler=sampler, batch=0, epoch=0)``."""

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: part for name, part in given.items()
                       if hasattr(part, "state_dict") and hasattr(part, "load_state_dict")}
        self._kept_parts: dict[str, Any] = {}
        for name, part in self._parts.items():
            setattr(self, name, part)
        super().__init__(**{name: value for name, value in values.items() if name not in self._parts})
        self.save()

    def save(self) -> None:
        self._kept_parts = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}
        super().save()

    def restore(self) -> None:
        for name, kept in self._kept_parts.items():
            self._parts[name].load_state_dict(copy.deepcopy(kept))
        super().restore()

    def sync(self) -> None:
        root = context.meeting.senior if context.meeting is not None else 0
        for part in self._parts.values():
            if isinstance(part, torch.nn.Module):
                _functions.broadcast_parameters(part.state_dict(), root)
            elif isinstance(part, torch.optim.Optimizer):
                _functions.broadcast_optimizer_state(part, root)
            elif isinstance(part, ElasticSampler):
                part.merge(_functions.allgather_object(part.state_dict()))
            else:
                part.load_state_dict(_functions.broadcast_object(part.state_dict(), root))
        super().sync()

    def reset(self) -> None:
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()


def _is_of_sampler(state: Any) -> bool:
    return (isinstance(state, dict) and type(state.get("epoch")) is int and isinstance(state.get("processed_indices"), list)
            and all(type(index) is int for index in state["processed_indices"]))


class ElasticSampler(torch.utils.data.Sampler):
    """This rank's indices of a data set: those of the pass that no rank has had yet, divided anew whenever ranks come
    or go. Part of a `TorchState`; the loop tells what it has had by `record_batch`."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """The next pass, of which nothing is had. Call it at the end of one."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has had batch number ``batch_idx`` of its loader since the last reset."""
        self.record_indices(self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size])

    def record_indices(self, indices: Sequence[int]) -> None:
        self.processed_indices.update(indices)

    def reset(self) -> None:
        """Divides what is left among the ranks: equally many each, some indices twice where it does not come out even."""
        size, rank = max(1, context.size), context.rank
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        each = math.ceil(len(left) / size)
        padded = left + (left * (each * size // len(left) + 1))[:each * size - len(left)] if left else []
        self.indices = padded[rank:each * size:size]

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """What any rank has had counts; the pass is that of the lowest rank with most commits."""
        root = context.meeting.senior if context.meeting is not None else 0
        for rank, state in enumerate(states):
            if not _is_of_sampler(state):
                raise ValueError(f"rank {rank} has sent no state of an ElasticSampler")
        self.epoch = states[root]["epoch"]
        self.processed_indices = {index for state in states if state["epoch"] == self.epoch
                                  for index in state["processed_indices"]}
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.processed_indices = state["epoch"], set(state["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
