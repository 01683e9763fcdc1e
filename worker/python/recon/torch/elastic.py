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
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import recon
from recon import _announced, _objects, collective
from recon.meeting import Meeting
from recon.torch._buckets import Buckets

__all__ = ["Elastic"]

_LOOK_SECONDS = 0.02
_LINE_MASK = (1 << 62) - 1


class _Step:
    """What has become of one step so far."""

    def __init__(self, module: torch.nn.Module) -> None:
        # A forward changes buffers, of batch norm, say; the next try is to begin with what this one has begun with.
        self.buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self.exchanged = False
        self.error: recon.ReconError | None = None


class Elastic:
    """This process as one of those that train ``module`` with ``optimizer`` under the same ``name`` at one server.

    Work begins with ``begin_size`` processes (``min_size`` by default), and waits where there are fewer than ``min_size``;
    all processes give the same numbers. ``also``: what else a newcomer gets, by name: things with ``state_dict`` and
    ``load_state_dict``, such as a learning rate scheduler, whose states are tensors and plain values. ``wire``: "fp16",
    "bf16" or "int8", as for `recon.collective.Group.all_reduce`. Gradients travel in buckets of ``bucket_megabytes`` as
    soon as they are there. Buffers are those that the lowest rank had at the end of the last step, unless
    ``broadcast_buffers`` is False. A process that is not heard for ``patience`` seconds is taken for dead (recon-server's ``--evict-after`` by
    default); ``timeout`` seconds are the longest wait for others, or for a server that has died: then
    `recon.collective.CallTimeout` or `recon.JobLost`. ``server`` and ``tls`` are as for `recon.collective.Group`. One
    thread uses it.

    ``steps`` counts the steps that are done, by whomever the state is from. Set it after loading a checkpoint, before the
    first `start_step`: of several checkpoints the one with most steps counts.
    """

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, *, name: str = "elastic",
                 min_size: int = 1, begin_size: int = 0, also: dict[str, Any] | None = None, wire: str = "",
                 bucket_megabytes: float = 25.0, broadcast_buffers: bool = True, patience: float = 0.0,
                 timeout: float = 600.0, server: str | None = None,
                 tls: tuple[str, str, str, bool, str, str] | None = None) -> None:
        for key, part in (also or {}).items():
            if key == "optimizer" or not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise ValueError(f"also['{key}'] is a {type(part).__name__}; expected something with state_dict and "
                                 "load_state_dict, under another name than 'optimizer'")
        if wire not in ("", "fp16", "bf16", "int8"):
            raise ValueError(f'wire is "{wire}", expected "", "fp16", "bf16" or "int8"')
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError("the module has no parameter that needs a gradient")
        self.module = module
        self.steps = 0
        # Says by which steps the state has come about: drawn anew by each meeting, and kept by who does a step after it.
        self._line = self._line_of_meeting = 0
        self._optimizer, self._wire, self._broadcasts = optimizer, wire, broadcast_buffers
        self._min_size, self._begin_size, self._timeout = min_size, begin_size, timeout
        self._parts = {"optimizer": optimizer, **(also or {})}
        self._exchanged = set(parameters)
        self._group: collective.Group | None = None
        self._vote: collective.Handle | None = None
        self._spread: list[tuple[torch.Tensor, collective.Handle]] = []
        self._step: _Step | None = None
        self._accumulates = False
        self._meeting = Meeting(name, server=server, min_size=min_size, on_loss="shrink", patience=patience,
                                timeout=timeout, tls=tls)
        self._buckets = Buckets(parameters, bucket_megabytes * 1e6, self)

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
        forgotten. `recon.collective.CallTimeout` if there are not ``min_size`` of them within ``timeout``."""
        if self._step is not None:
            raise RuntimeError("a step has begun already: step() ends it")
        if self._group is None or self._is_disturbed():
            self._meet()
        self._step = _Step(self.module)

    def step(self, apply: Callable[[], object] | None = None) -> bool:
        """After a step's last backward: ``optimizer.step()``, or ``apply()`` in its place (``lambda:
        scaler.step(optimizer)``). False where the gradients could not be exchanged, because the server or the way to it
        is gone: they are dropped, nothing is applied, and `start_step` waits for it."""
        if self._step is None:
            raise RuntimeError("no step has begun: start_step() comes before")
        step, self._step = self._step, None
        self._buckets.reset()
        if not step.exchanged:
            raise RuntimeError("no gradient has been exchanged in this step: was backward() called, and not in no_sync()?")
        if step.error is not None:
            print(f"recon: '{self._meeting.name}' does step {self.steps + 1} again: {step.error}", file=sys.stderr, flush=True)
            self._optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for buffer, before in step.buffers:
                    buffer.copy_(before)
            self._leave()
            return False
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._exchanged:
                    raise RuntimeError(f"a parameter of shape {list(parameter.shape)} has a gradient, but needed none when "
                                       "Elastic was made: it would be another one at each process")
        (apply or self._optimizer.step)()
        self.steps += 1
        self._line = self._line_of_meeting
        with contextlib.suppress(recon.ReconError):  # Whoever asks for it hears of it.
            self._vote = self._ask()
            self._spread = self._spread_buffers(self.group, self.group.ranks[0])
        return True

    def close(self) -> None:
        """Leaves the others, who go on without this process."""
        self._leave()
        self._meeting.close()
        self._buckets.remove()

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
            for flat, handle in self._spread:
                handle.wait()
                self._fill_buffers(flat)
        except recon.ReconError as error:
            self._raise_unless_loss(error, self.group)
            return True
        finally:
            self._vote, self._spread = None, []
        return answer

    def _spread_buffers(self, group: collective.Group, root: int) -> list[tuple[torch.Tensor, collective.Handle]]:
        buffers = list(self.module.buffers()) if self._broadcasts else []
        if not buffers:
            return []
        # As bytes, whatever their types.
        flat = torch.cat([_as_bytes(buffer) for buffer in buffers])
        return [(flat, group.broadcast(flat, root, out=flat, async_op=True))]

    @torch.no_grad()
    def _fill_buffers(self, flat: torch.Tensor) -> None:
        buffers = list(self.module.buffers())
        for buffer, part in zip(buffers, flat.split([one.numel() * one.element_size() for one in buffers])):
            own = torch.empty(buffer.shape, dtype=buffer.dtype)
            _as_bytes(own).copy_(part)
            buffer.copy_(own)

    def _raise_unless_loss(self, error: recon.ReconError, group: collective.Group) -> None:
        """Meeting anew helps where somebody has gone, or this membership has."""
        gone = isinstance(error, (collective.MemberLost, collective.SetChanged, recon.JobLost)) or group.disturbed()
        if isinstance(error, collective.CallTimeout) or not gone:
            raise error

    def _meet(self) -> None:
        self._leave()
        while True:
            group = self._meeting.meet()
            try:
                if group.ranks != list(range(group.size)):  # Somebody has died while it began.
                    continue
                states = group.all_gather(np.array([[self.steps, self._line]], np.int64), sizes=[1] * group.size).tolist()
                if not any(line for _, line in states) and group.size < self._begin_size:
                    self._await_others(group)
                    continue
                self._share_state(group, states)
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
        print(f"recon: '{self._meeting.name}' has {group.size} of the {self._begin_size} processes that it begins with",
              file=sys.stderr, flush=True)
        while not self._meeting.changed:
            if time.monotonic() > end:
                raise collective.CallTimeout(f"'{self._meeting.name}' has {group.size} processes, it is to begin with "
                                             f"{self._begin_size}; no other came within {self._timeout:g} s")
            time.sleep(_LOOK_SECONDS)

    def _share_state(self, group: collective.Group, states: list[list[int]]) -> None:
        """From one with most steps to those who have fewer, or have come to as many without it: when all have lost the
        server, some may have gone on before others were back. Who has done no step yet has a state of its own."""
        senior = max(range(len(states)), key=lambda place: (states[place][0], -place))
        lacking = [place for place, state in enumerate(states)
                   if place != senior and (state != states[senior] or state[1] == 0)]
        place = group.ranks.index(group.rank)
        if lacking:
            # Those who have everything need not hear it.
            concerned = sorted([senior, *lacking])
            with group.split("state" if place in concerned else "nothing") as among:
                if place in concerned and among.size < len(concerned):
                    raise collective.SetChanged(f"set '{among.name}' has lost a member before it was used")
                if place in concerned:
                    self._hand_over(among, concerned.index(senior), place == senior)
        # Which nobody else has: what follows from here on is of these processes.
        line = group.broadcast(np.frombuffer(os.urandom(8), np.int64) & _LINE_MASK, group.ranks[senior])
        self._line_of_meeting = int(line[0])
        # Whatever a state lacks, and what has become of buffers while somebody was lost.
        for flat, handle in self._spread_buffers(group, group.ranks[senior]):
            handle.wait()
            self._fill_buffers(flat)

    def _hand_over(self, among: collective.Group, root: int, is_mine: bool) -> None:
        data, error = self._encoded() if is_mine else (b"", None)
        size = int(among.broadcast(np.array([len(data)], np.int64), root)[0])
        if not is_mine:
            _announced.check([size], 1, [f"'{among.members[root]}', a process of '{self._meeting.name}',"])
        content = np.frombuffer(data, np.uint8) if is_mine else np.empty(size, np.uint8)
        content = among.broadcast(content, root)
        if error is not None:
            raise error
        if not is_mine:
            self._load(content.tobytes())

    def _encoded(self) -> tuple[bytes, Exception | None]:
        """This process' state; where that cannot be sent the error, and what tells it those who wait."""
        try:
            return _objects.encode({"steps": self.steps, "line": self._line, "module": self.module.state_dict(),
                                    "parts": {name: part.state_dict() for name, part in self._parts.items()}}), None
        except (TypeError, ValueError) as error:
            return _objects.encode_refusal(str(error)), error

    def _load(self, data: bytes) -> None:
        state = _objects.decode(data, sender=f"a process of '{self._meeting.name}'")
        whole = isinstance(state, dict) and type(state.get("steps")) is int and type(state.get("line")) is int
        if not whole or not all(isinstance(state.get(name), dict) for name in ("module", "parts")):
            raise ValueError(f"a process of '{self._meeting.name}' has sent a value that is no state")
        if set(state["parts"]) != set(self._parts):
            raise ValueError(f"another process of '{self._meeting.name}' has {sorted(state['parts'])} beside its module, "
                             f"this one {sorted(self._parts)}: also= is to be the same")
        self.module.load_state_dict(state["module"])
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.steps, self._line = state["steps"], state["line"]

    # What the buckets ask.

    def begin_backward(self) -> bool:
        if self._accumulates:
            return False
        if self._step is None:
            raise RuntimeError("backward() outside of a step: start_step() comes before")
        if self._step.exchanged:
            raise RuntimeError("a second backward() in a step: all but the last one are to be in no_sync(). (Or a checkpoint() "
                               "with use_reentrant=True, which has backwards of its own: use_reentrant=False has none.)")
        return True

    def mean(self, flat: torch.Tensor) -> Callable[[], bool]:
        dense = flat.cpu()
        wait = self._reduce(dense, "mean", self._wire if dense.dtype == torch.float32 else "")

        def done() -> bool:
            if wait() and dense is not flat:
                flat.copy_(dense)
            return self._step is not None and self._step.error is None
        return done

    def somewhere(self, present: torch.Tensor) -> Callable[[], bool]:
        return self._reduce(present, "max", "")

    def end_backward(self) -> None:
        assert self._step is not None, "begin_backward() has looked"
        self._step.exchanged = True

    def _reduce(self, tensor: torch.Tensor, op: str, wire: str) -> Callable[[], bool]:
        """In place. The first error of a step is kept, of which step() tells."""
        step, group = self._step, self.group
        assert step is not None, "begin_backward() has looked"

        def failed(error: recon.ReconError) -> bool:
            self._raise_unless_loss(error, group)
            step.error = step.error or error
            return False

        if step.error is not None:
            return lambda: False
        try:
            handle = group.all_reduce(tensor, op, out=tensor, wire=wire, async_op=True)
        except recon.ReconError as error:
            failed(error)
            return lambda: False

        def wait() -> bool:
            try:
                handle.wait()
                # All who have a part in it see the same.
                if handle.members < self._min_size:
                    raise collective.SetChanged(f"{handle.members} processes are left in this step, it is to have "
                                                f"{self._min_size}")
                return True
            except recon.ReconError as error:
                return failed(error)
        return wait


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Of a contiguous one on the CPU these are its own."""
    own = tensor.detach().cpu().contiguous()
    return (torch.view_as_real(own) if own.is_complex() else own).reshape(-1).view(torch.uint8)
