"""Data-parallel training that goes on when ranks die, and takes in those that come.

    elastic = recon.torch.elastic.Elastic(module, optimizer)       # RECON_SERVER says where recon-server is
    while elastic.steps < steps:
        elastic.start_step()                       # whoever has come joins here, with everything a survivor has
        optimizer.zero_grad()
        loss(module(x), y).backward()              # after it gradients are the mean over those who are there
        elastic.step()                             # instead of optimizer.step()

It needs no init_process_group: processes find each other at the server, by ``name``, and have ranks in the order in
which they came. When one dies, the others do not stop: sums that it has no part in are made again without it. One that
comes, a replacement say, waits until the others begin their next step; it gets parameters, buffers and the optimizer's
state of one that has most steps, and they go on together. When the server dies, the step under way is lost; the
processes wait for the server, which needs nothing from before, and go on.

A data-parallel group that may change at each step's boundary, with a commit at the step's end, is torchft's idea.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import recon
from recon import collective
from recon.meeting import Meeting

__all__ = ["Elastic"]

_LOOK_SECONDS = 0.02


class _Bucket:
    """Gradients of one type that travel together. Which ones hangs on the module alone: a newcomer has the same ones."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters

    def flat(self) -> torch.Tensor:
        """On the CPU; zeros of parameters that have none."""
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
        return torch.cat([gradient.detach().reshape(-1).cpu() for gradient in gradients])

    def take(self, flat: torch.Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:  # Others have one.
                parameter.grad = torch.zeros_like(parameter)
        _fill([parameter.grad for parameter in self.parameters], flat)


def _buckets(module: torch.nn.Module, bytes_max: float) -> list[_Bucket]:
    """Those whose gradients come first, the last layers', are first."""
    lists: list[list[torch.nn.Parameter]] = []
    size = 0
    for parameter in reversed([one for one in module.parameters() if one.requires_grad]):
        more = parameter.numel() * parameter.element_size()
        if not lists or lists[-1][0].dtype != parameter.dtype or size + more > bytes_max:
            lists.append([])
            size = 0
        lists[-1].append(parameter)
        size += more
    return [_Bucket(parameters) for parameters in lists]


class _Step:
    """What has become of one step so far."""

    def __init__(self, module: torch.nn.Module, buckets: int) -> None:
        # A forward changes buffers, of batch norm, say; the next try is to begin with what this one has begun with.
        self.buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self.missing: list[set[torch.nn.Parameter]] = [set() for _ in range(buckets)]
        self.flying: list[tuple[_Bucket, torch.Tensor, collective.Handle]] = []
        self.begun = 0  # Buckets that have been sent, in their order, which is the same at all processes.
        self.backward = False  # It is running.
        self.exchanged = False
        self.error: recon.ReconError | None = None


class Elastic:
    """This process as one of those that train ``module`` with ``optimizer`` under the same ``name`` at one server.

    Work begins with ``begin_size`` processes (``min_size`` by default), and waits where there are fewer than ``min_size``;
    all processes give the same numbers. ``also``: what else a newcomer gets, by
    name: things with ``state_dict`` and ``load_state_dict``, such as a learning rate scheduler, whose states are tensors
    and plain values. ``wire``: "fp16", "bf16" or "int8", as for `recon.collective.Group.all_reduce`. Gradients travel in
    buckets of ``bucket_megabytes`` as soon as they are there. Buffers are those of the lowest rank at each step's
    beginning, unless ``broadcast_buffers`` is False. A process that is not heard for ``patience`` seconds is taken for
    dead (recon-server's ``--evict-after`` by default); ``timeout`` seconds are the longest wait for others, or for a
    server that has died: then `recon.collective.CallTimeout` or `recon.JobLost`. ``server`` and ``tls`` are as for
    `recon.collective.Group`. One thread uses it.
    """

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, *, name: str = "elastic",
                 min_size: int = 1, begin_size: int = 0, also: dict[str, Any] | None = None, wire: str = "", bucket_megabytes: float = 25.0,
                 broadcast_buffers: bool = True, patience: float = 0.0, timeout: float = 600.0, server: str | None = None,
                 tls: tuple[str, str, str, bool, str, str] | None = None) -> None:
        for key, part in (also or {}).items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise ValueError(f"also['{key}'] is a {type(part).__name__}, which has no state_dict and load_state_dict")
        self.module = module
        self.steps = 0  # That have been done, by whomever the state is from.
        self._optimizer, self._wire, self._broadcasts = optimizer, wire, broadcast_buffers
        self._begin_size, self._timeout = begin_size, timeout
        self._parts = {"optimizer": optimizer, **(also or {})}
        self._buckets = _buckets(module, bucket_megabytes * 1e6)
        if not self._buckets:
            raise ValueError("the module has no parameter that needs a gradient")
        self._group: collective.Group | None = None
        self._vote: collective.Handle | None = None
        self._spread: list[tuple[list[torch.Tensor], torch.Tensor, collective.Handle]] = []
        self._step: _Step | None = None
        self._accumulates = False
        self._meeting = Meeting(name, server=server, min_size=min_size, on_loss="shrink", patience=patience,
                                timeout=timeout, tls=tls)
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived(number))
                       for number, bucket in enumerate(self._buckets) for parameter in bucket.parameters]

    @property
    def rank(self) -> int:
        """Of this process, among those with which the step began: 0 is who has been there longest. It may be another one
        at the next step."""
        return self.group.rank

    @property
    def size(self) -> int:
        """How many processes there were when the step began."""
        return self.group.size

    @property
    def group(self) -> collective.Group:
        """The set of those processes, for calls of the loop's own, which all of them make between start_step() and step():
        the mean of a loss, say."""
        if self._group is None:
            raise RuntimeError("no step has begun: start_step() comes before")
        return self._group

    def start_step(self) -> None:
        """Before a step's first forward. Here processes that have come are let in, and those that have gone are
        forgotten. `recon.CallTimeout` if there are not ``min_size`` of them within ``timeout``."""
        if self._step is not None:
            raise RuntimeError("a step has begun already: step() ends it")
        if self._group is None or self._is_disturbed():
            self._meet()
        self._step = _Step(self.module, len(self._buckets))
        for missing, bucket in zip(self._step.missing, self._buckets):
            missing.update(bucket.parameters)

    def step(self, apply: Callable[[], object] | None = None) -> bool:
        """After a step's last backward: ``optimizer.step()``, or ``apply()`` in its place (``lambda:
        scaler.step(optimizer)``). False where the gradients could not be exchanged, because the server or the way to it
        is gone: they are dropped, nothing is applied, and `start_step` waits for it."""
        if self._step is None:
            raise RuntimeError("no step has begun: start_step() comes before")
        step, self._step = self._step, None
        if not step.exchanged:
            raise RuntimeError("no gradient has been exchanged in this step: was backward() called, and not in no_sync()?")
        if step.error is not None:
            self._optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for buffer, before in step.buffers:
                    buffer.copy_(before)
            self._leave()
            return False
        (apply or self._optimizer.step)()
        self.steps += 1
        with contextlib.suppress(recon.ReconError):  # Whoever asks for it hears of it.
            self._vote = self._ask()
            self._spread = self._spread_buffers()
        return True

    def close(self) -> None:
        """Leaves the others, who go on without this process."""
        self._leave()
        self._meeting.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward() in here are not exchanged, but added up, for the last one of the step."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group, self._vote, self._spread = None, None, []

    # All processes are to meet before the same step: each says whether it has heard of a change, and all get the same
    # answer. It travels while the loop is between two steps.

    def _ask(self) -> collective.Handle:
        group = self.group
        heard = self._meeting.changed or group.disturbed()
        return group.all_reduce(np.array([heard], np.uint8), "max", async_op=True)

    def _is_disturbed(self) -> bool:
        if self._vote is None:
            return True
        try:
            answer = bool(self._vote.wait()[0])
            for tensors, flat, handle in self._spread:
                handle.wait()
                _fill(tensors, flat)
        except recon.ReconError as error:
            self._raise_unless_loss(error, self.group)
            return True
        finally:
            self._vote, self._spread = None, []
        return answer

    def _spread_buffers(self) -> list[tuple[list[torch.Tensor], torch.Tensor, collective.Handle]]:
        if not self._broadcasts:
            return []
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in self.module.buffers():
            by_type.setdefault(buffer.dtype, []).append(buffer)
        flats = [(buffers, torch.cat([one.detach().cpu().reshape(-1) for one in buffers])) for buffers in by_type.values()]
        group = self.group
        return [(buffers, flat, group.broadcast(flat, group.ranks[0], out=flat, async_op=True)) for buffers, flat in flats]

    def _raise_unless_loss(self, error: recon.ReconError, group: collective.Group) -> None:
        """Meeting anew helps where somebody has gone, or this membership has."""
        gone = isinstance(error, (collective.MemberLost, collective.SetChanged, recon.JobLost)) or group.disturbed()
        if isinstance(error, collective.CallTimeout) or not gone:
            raise error

    def _meet(self) -> None:
        self._leave()
        while True:
            # 0 is for those who have nothing: at the beginning nobody has steps, and one's parameters are all's.
            group = self._meeting.meet(worth=self.steps + 1)
            try:
                if max(self._meeting.worths) == 1 and group.size < self._begin_size:
                    self._await_others(group)
                    continue
                self._share_state(group)
            except recon.ReconError as error:
                self._raise_unless_loss(error, group)
            else:
                self._group, group = group, None
                return
            finally:
                if group is not None:
                    group.close()

    def _await_others(self, group: collective.Group) -> None:
        end = time.monotonic() + self._timeout
        while not self._meeting.changed:
            if time.monotonic() > end:
                raise collective.CallTimeout(f"'{self._meeting.name}' has {group.size} processes, it is to begin with "
                                             f"{self._begin_size}; no other came within {self._timeout:g} s")
            time.sleep(_LOOK_SECONDS)

    def _share_state(self, group: collective.Group) -> None:
        worths, senior = self._meeting.worths, self._meeting.senior
        lacking = [place for place, worth in enumerate(worths)
                   if place != senior and (worth < worths[senior] or worth == 1)]
        if not lacking:
            return
        # Those who have everything need not hear it.
        place = group.ranks.index(group.rank)
        with group.split("state" if place == senior or place in lacking else "nothing") as among:
            if place != senior and place not in lacking:
                return
            root = among.ranks[sorted([senior, *lacking]).index(senior)]
            data = self._dumped() if place == senior else b""
            size = int(among.broadcast(np.array([len(data)], np.int64), root)[0])
            content = np.frombuffer(data, np.uint8) if place == senior else np.empty(size, np.uint8)
            content = among.broadcast(content, root)
            if place != senior:
                self._load(content.tobytes())

    def _dumped(self) -> bytes:
        state = {"steps": self.steps, "module": self.module.state_dict(),
                 "parts": {name: part.state_dict() for name, part in self._parts.items()}}
        stream = io.BytesIO()
        torch.save(state, stream)
        return stream.getvalue()

    def _load(self, data: bytes) -> None:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if set(state["parts"]) != set(self._parts):
            raise ValueError(f"another process of '{self._meeting.name}' has {sorted(state['parts'])} beside its module, "
                             f"this one {sorted(self._parts)}: also= is to be the same")
        self.module.load_state_dict(state["module"])
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.steps = state["steps"]

    def _arrived(self, number: int) -> Callable[[torch.nn.Parameter], None]:
        def hook(parameter: torch.nn.Parameter) -> None:
            if self._accumulates:
                return
            step = self._step
            if step is None:
                raise RuntimeError("backward() outside of a step: start_step() comes before")
            if step.exchanged:
                raise RuntimeError("a second backward() in a step: all but the last one are to be in no_sync()")
            if not step.backward:
                step.backward = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish_exchange)
            step.missing[number].discard(parameter)
            while step.begun < len(self._buckets) and not step.missing[step.begun]:
                self._send_next(step)
        return hook

    def _send_next(self, step: _Step) -> None:
        bucket = self._buckets[step.begun]
        step.begun += 1
        if step.error is not None:
            return
        flat = bucket.flat()
        try:
            handle = self.group.all_reduce(flat, "mean", out=flat, async_op=True,
                                           wire=self._wire if flat.dtype == torch.float32 else "")
        except recon.ReconError as error:
            self._raise_unless_loss(error, self.group)
            step.error = error
        else:
            step.flying.append((bucket, flat, handle))

    def _finish_exchange(self) -> None:
        step = self._step
        assert step is not None, "the hook that asked for this has looked"
        while step.begun < len(self._buckets):  # Of parameters that this process' loss has not used.
            self._send_next(step)
        for bucket, flat, handle in step.flying:
            try:
                handle.wait()
            except recon.ReconError as error:
                self._raise_unless_loss(error, self.group)
                step.error = step.error or error
            if step.error is None:
                bucket.take(flat)
        step.flying.clear()
        step.exchanged = True


def _fill(tensors: list[torch.Tensor], flat: torch.Tensor) -> None:
    with torch.no_grad():
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view(tensor.shape))

