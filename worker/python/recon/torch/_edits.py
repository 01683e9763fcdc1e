"""Parameters that a script changes behind the job's back."""

from __future__ import annotations

import torch

from recon.torch._tensors import Tensors

# A model with more parameters is looked at in its first steps, and then in each so-manieth.
SMALL_MODEL = 1_000_000
FIRST_STEPS = 8
EVERY, EVERY_ON_DEVICE = 8, 32
# A perturbation that is taken back leaves an error of so many roundings of the tensor's largest value, and so much more.
ROUNDING, ROUNDING_OF_ZERO = 4.0, 1e-8


class Edits:
    """Compares the parameters with those that the job has given: whatever else is there would be overwritten by the next
    ones, and no gradient that is pushed is of it."""

    def __init__(self, tensors: Tensors, model: str) -> None:
        self._tensors = tensors
        self._model = model
        size = sum(parameter.numel() for parameter in tensors.trained)
        on_device = any(parameter.device.type != "cpu" for parameter in tensors.trained)
        self._small = size <= SMALL_MODEL
        self._every = 1 if self._small else EVERY_ON_DEVICE if on_device else EVERY
        # What a small model was given is kept. A large one is compared with what the worker's core has, which changes when
        # the core is asked for work.
        self._given: list[torch.Tensor] = []
        self._steps = 0
        self._stepped = False

    @torch.no_grad()
    def given(self) -> None:
        """The model has the job's parameters now."""
        if not self._small:
            return
        loaded = self._tensors.loaded()
        if not self._given:
            self._given = [values.clone() for _, values in loaded]
        for kept, (_, values) in zip(self._given, loaded):
            kept.copy_(values)

    def _due(self) -> bool:
        return self._steps < FIRST_STEPS or self._steps % self._every == 0

    def before_push(self) -> None:
        """At ``step()``. RuntimeError if the gradients are of other parameters than the job's."""
        if self._due():
            self._compare("before this step()", exact=False)

    def after_step(self) -> None:
        """From here on the script changes nothing, or is told."""
        self._stepped = True

    def look(self) -> None:
        """Before the job gives the next parameters. RuntimeError if the script has changed those that it had."""
        if self._stepped:
            self._stepped = False
            if self._due():
                self._compare(f"after step() number {self._steps + 1}", exact=True)
            self._steps += 1

    def look_at_beginning(self) -> None:
        """Before a batch that begins a step. What is between two passes comes here."""
        if self._given:
            self._compare(f"before the batch of step() number {self._steps + 1}", exact=False)

    @torch.no_grad()
    def _compare(self, when: str, exact: bool) -> None:
        for number, (tensor, values) in enumerate(self._tensors.loaded()):
            now, given = tensor.detach().to("cpu"), (self._given[number] if self._given else values).to(tensor.dtype)
            if torch.equal(now, given):
                continue
            change = (now.double() - given.double()).abs()
            largest = float(change.max()) if bool(change.isfinite().all()) else float("inf")
            rounding = ROUNDING * torch.finfo(tensor.dtype).eps * float(given.abs().max()) + ROUNDING_OF_ZERO
            if not exact and largest <= rounding:
                continue
            raise RuntimeError(
                f"parameter {self._tensors.names[number]} of {self._model} is not what the job has given: {when} the script "
                f"changed {int((change != 0).sum())} of its {tensor.numel()} values, by up to {largest:.3g}. The server has "
                "the parameters, and the change would be lost with the next ones. Clamping, masks and norms belong into "
                "forward() (torch.nn.utils.parametrize), other values into the model before join(); an optimizer whose own "
                "step() does it steps on the worker, and what it does counts")
