"""Gradients that are pushed while backward still runs."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

# Steps in which nothing changes a gradient between backward and step(), until gradients are pushed as they come.
PROVEN_STEPS = 3
# Values of a gradient that are compared, where a comparison of all would cost too much.
SAMPLE = 64


def warn(text: str) -> None:
    """Of the script's line that has called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("recon", "torch", "contextlib"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def outside_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which torch.compile is not to look into: called from compiled code, it runs as it is."""
    disabled: Callable[..., Any] | None = None

    def first(*args: Any, **named: Any) -> Any:
        # Where autograd calls it, and no compiled code does.
        sys.modules["torch._dynamo"].eval_frame.skip_code(call.__code__)
        return function(*args, **named)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:  # Its import takes a second or two.
            return function(*args, **named)
        if disabled is None:
            run, disabled = torch.compiler.disable(first), torch.compiler.disable(function)
            return run(*args, **named)
        return disabled(*args, **named)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


@torch.no_grad()
def sample_of(gradient: torch.Tensor) -> torch.Tensor:
    """Some values of it, a copy: all of a small one."""
    flat = gradient.detach()
    if flat.dim() == 4 and flat.is_contiguous(memory_format=torch.channels_last):
        flat = flat.permute(0, 2, 3, 1)
    flat = flat.reshape(-1)
    return flat[::max(1, flat.numel() // SAMPLE)].clone()


class Overlap:
    """Pushes each gradient as soon as backward has it, where that is the same as pushing all of them at ``step()``.

    It is not, where the script clips, unscales or accumulates in between. So the first steps only watch: each gradient is
    noted when backward has it and compared at ``step()``. `wanted` is None for that, False for never; True is a promise
    of the script, and a change is an error then.
    """

    def __init__(self, core: Any, parameters: list[torch.nn.Parameter], places: list[tuple[int, int]],
                 rates: Callable[[], list[float]], weight: Callable[[], int], wanted: bool | None) -> None:
        self._core = core
        self._parameters = parameters
        self._places = places
        self._rates = rates
        self._weight = weight
        self._wanted = wanted
        self._samples = 0
        self._proven = PROVEN_STEPS if wanted else 0
        # Of the batch that has begun: what each gradient was when it came, by the parameter's number.
        self._came: dict[int, tuple[int, int, torch.Tensor]] = {}
        self._again = False
        self._target: torch.Tensor | None = None
        self._rates_then: list[float] = []
        self._watching = False
        self._pushing = False
        self.why_not = ""
        if wanted is False:
            self.why_not = "overlap=False"
        elif any(parameter.device.type != "cpu" for parameter in parameters):
            self.why_not = "the model is on a device"
        if not self.why_not:
            for number, parameter in enumerate(parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(number))

    @property
    def pushing(self) -> bool:
        """Whether gradients of this batch are on their way."""
        return self._pushing

    @property
    def on(self) -> bool:
        return self._proven >= PROVEN_STEPS and not self.why_not

    def begin(self, samples: int, accumulating: bool) -> None:
        """A batch begins; `accumulating`: the one before has not been stepped."""
        if accumulating:
            self._again = True
            return
        self._came.clear()
        self._again = self._pushing = False
        self._samples = samples
        self._watching = not self.why_not

    def take(self) -> set[int]:
        """At ``step()``: numbers of the parameters whose gradients are pushed already."""
        if not self._watching:
            return set()
        self._watching = False
        change = self._change()
        if not self._pushing:
            self._prove(change)
            return set()
        if change and self._wanted:
            raise RuntimeError(f"{change}, but its gradients are pushed while backward runs: join() was given overlap=True")
        if change:
            warn(f"{change}. This step has gone out as backward left it; from here on gradients are pushed at step(). Give "
                 "join() overlap=False")
            self.why_not = change
        return set(self._came)

    def rates(self, now: list[float]) -> list[float]:
        """The learning rates that the push goes by."""
        return self._rates_then if self._pushing else now

    def stop(self) -> None:
        """The batches since the last ``step()`` will not see one."""
        self._watching = False
        self._came.clear()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        offset, size = self._places[number]

        def came(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if not self._watching or gradient is None:
                return
            if number in self._came or self._again or gradient.is_sparse:
                self._again = True
                return
            if not self._came:
                self._first()
            if not self._watching:
                return
            assert self._target is not None
            self._target[offset:offset + size].copy_(gradient.detach().reshape(-1))
            self._came[number] = (gradient._version, gradient.data_ptr(), sample_of(gradient))
            if self._pushing:
                self._core.filled(offset, size)

        return outside_compiled(came)

    def _first(self) -> None:
        self._rates_then = self._rates()
        if self._proven >= PROVEN_STEPS:
            self._pushing = self._core.push_as_it_comes(self._samples, self._rates_then, self._weight())
            self._watching = self._pushing
        self._target = torch.from_numpy(self._core.gradient())

    def _change(self) -> str:
        """What has changed since the gradients came; empty if nothing has."""
        if self._again:
            return "gradients were accumulated over several backward passes"
        if self._rates() != self._rates_then and self._came:
            return "the learning rate changed between backward() and step()"
        for number, (version, pointer, values) in self._came.items():
            gradient = self._parameters[number].grad
            if gradient is None or gradient._version != version or gradient.data_ptr() != pointer:
                return "a gradient changed between backward() and step()"
            # Changes through .data count no version.
            if not torch.allclose(sample_of(gradient), values, rtol=0, atol=0, equal_nan=True):
                return "a gradient changed between backward() and step()"
        return ""

    @torch.no_grad()
    def _prove(self, change: str) -> None:
        # Changes through .data count no version.
        for number in self._came if not change else ():
            offset, size = self._places[number]
            gradient = self._parameters[number].grad
            assert gradient is not None and self._target is not None
            came = self._target[offset:offset + size]
            if not torch.equal(came, gradient.detach().reshape(-1).to(came.dtype)):
                change = "a gradient changed between backward() and step()"
                break
        self.why_not = change
        self._proven += 1
