"""Gradients of several processes that become their mean while backward runs: in buckets, which travel as soon as they are
whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Owner(Protocol):
    """What makes the means."""

    def begin_backward(self) -> bool:
        """A backward has its first gradient: whether gradients are exchanged. It may raise."""

    def mean(self, flat: torch.Tensor) -> Callable[[], bool]:
        """Begins to make `flat` the mean of all processes'. What it returns waits for that, and says whether it is."""

    def somewhere(self, present: torch.Tensor) -> Callable[[], bool]:
        """The same of the maximum, of bytes on the CPU."""

    def end_backward(self) -> None:
        """All gradients of the backward have been exchanged, or what went wrong has been said."""


class Buckets:
    """The buckets of these parameters, each of one type and device and of about so many bytes. Which ones hangs on the
    parameters alone, so that a process that comes later has the same. (DistributedDataParallel orders its buckets by the
    first backward.) A gradient stays None where no process has one."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], bytes_max: float, owner: Owner) -> None:
        self._owner = owner
        self._lists: list[list[torch.nn.Parameter]] = []
        size = 0
        for parameter in reversed(parameters):  # Gradients of the last layers come first.
            more = parameter.numel() * parameter.element_size()
            last = self._lists[-1][0] if self._lists else parameter
            if not self._lists or (last.dtype, last.device) != (parameter.dtype, parameter.device) or size + more > bytes_max:
                self._lists.append([])
                size = 0
            self._lists[-1].append(parameter)
            size += more
        self._missing: list[set[torch.nn.Parameter]] = []
        self._flying: list[tuple[list[torch.nn.Parameter], torch.Tensor, Callable[[], bool]]] = []
        self._begun = 0  # Buckets that are sent, in their order, which is that of all processes.
        self._active = False
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived(number))
                       for number, one in enumerate(self._lists) for parameter in one]

    def remove(self) -> None:
        """From here on gradients are this process' own."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def reset(self) -> None:
        """What a backward that has raised an error has left."""
        self._active = False
        self._flying = []

    def _arrived(self, number: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if not self._active:
                if not self._owner.begin_backward():
                    return
                self._active = True
                self._begun = 0
                self._missing = [set(one) for one in self._lists]
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._missing[number].discard(parameter)
            while self._begun < len(self._lists) and not self._missing[self._begun]:
                self._send_next()
        return hook

    @torch.no_grad()
    def _send_next(self) -> None:
        parameters = self._lists[self._begun]
        self._begun += 1
        flat = torch.cat([torch.zeros_like(one).reshape(-1) if one.grad is None else _dense(one.grad).reshape(-1)
                          for one in parameters])
        self._flying.append((parameters, flat, self._owner.mean(flat)))

    @torch.no_grad()
    def _finish(self) -> None:
        while self._begun < len(self._lists):  # Of parameters that this process' loss has not used.
            self._send_next()
        flying, self._flying = self._flying, []
        self._active = False
        present = torch.tensor([parameter.grad is not None for one in self._lists for parameter in one], dtype=torch.uint8)
        is_known = self._owner.somewhere(present)
        # All of them, whether one fails or not: they write into memory that is given back here.
        done = [wait() for *_, wait in flying] + [is_known()]
        if all(done):
            there = iter(present.tolist())
            for parameters, flat, _ in flying:
                for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters])):
                    if not next(there):
                        continue
                    if parameter.grad is None or parameter.grad.is_sparse:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(part.view(parameter.shape))
        self._owner.end_backward()


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
