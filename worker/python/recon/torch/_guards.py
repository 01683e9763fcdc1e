"""What a script does to an optimizer that the server computes: what would be lost is refused or told, by name, at the step
where it happens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from recon.torch._overlap import outside_compiled, sample_of, warn
from recon.torch._tensors import Tensors

# Settings that may change: the rate goes with each push, and the others are ways to compute the same.
_FREE = {"lr", "foreach", "fused", "capturable", "differentiable"}
_STEPS_HERE = "an optimizer that steps on the worker (local steps): a class of your own, class Mine(torch.optim.{kind}): pass"
# So many of the smallest gradients are looked at.
SAMPLED_MAX = 8
RATIO_ERROR = 1e-4


class Guards:
    """One for a job whose server computes the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, tensors: Tensors, workers: Callable[[], int] | None) -> None:
        """`workers`: how many make a step together; None where gradients are not watched."""
        self._optimizer = optimizer
        self._kind = type(optimizer).__name__
        self._tensors = tensors
        self._steps = 0
        self._settings = [self._settings_of(group) for group in optimizer.param_groups]
        self._decay = {id(parameter): float(group["weight_decay"]) for group in optimizer.param_groups
                       for parameter in group["params"]}
        self._has_state = self._kind != "SGD" or optimizer.param_groups[0]["momentum"] != 0
        self._had_gradient: set[int] = set()
        self._told: set[str] = set()
        self._changes = _Changes(tensors, workers) if workers is not None else None
        self._hooks = [optimizer.register_state_dict_post_hook(self._state_is_read),
                       optimizer.register_load_state_dict_pre_hook(self._state_is_loaded)]

    def at_step(self) -> None:
        """Before the gradients are pushed. RuntimeError for what the server would compute otherwise than the script says."""
        self._look_at_settings()
        self._look_at_frozen()
        self._look_at_missing()
        self._steps += 1
        warning = self._changes.at_step() if self._changes is not None else ""
        if warning:
            self._warn("changed", warning)

    def end(self) -> None:
        """The optimizer is the script's again."""
        for hook in self._hooks:
            hook.remove()
        if self._changes is not None:
            self._changes.end()

    def _warn(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warn(text)

    def _settings_of(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: _plain(group[name]) for name in self._optimizer.defaults if name in group and name not in _FREE}

    def _look_at_settings(self) -> None:
        for number, (group, before) in enumerate(zip(self._optimizer.param_groups, self._settings)):
            for name, value in before.items():
                now = _plain(group.get(name, value))
                if now == value:
                    continue
                raise RuntimeError(
                    f"{name} of the optimizer's group {number} is {now!r} at this step and was {value!r} at join(): the server "
                    "computes the optimizer with what it was then, and only the learning rate goes with each push. OneCycleLR "
                    f"and CyclicLR take cycle_momentum=False; a schedule of {name} needs {_STEPS_HERE.format(kind=self._kind)}")

    def _moves_by_itself(self, number: int) -> bool:
        """Whether a gradient of 0 moves the parameter."""
        decay = self._decay.get(id(self._tensors.trained[number]), 0.0)
        return decay != 0 or self._has_state and number in self._had_gradient

    def _look_at_frozen(self) -> None:
        for number, parameter in enumerate(self._tensors.trained):
            if parameter.requires_grad or not self._moves_by_itself(number):
                continue
            raise RuntimeError(
                f"parameter {self._tensors.names[number]} was trained at join() and has requires_grad=False at this step: the "
                f"server's {self._kind} would go on moving it, by momentum or weight decay. Freeze before join(), train in two "
                f"jobs, one after the other, or use {_STEPS_HERE.format(kind=self._kind)}")

    def _look_at_missing(self) -> None:
        for number, parameter in enumerate(self._tensors.trained):
            if parameter.grad is not None:
                self._had_gradient.add(number)
            elif parameter.requires_grad and self._moves_by_itself(number):
                self._warn("missing", f"parameter {self._tensors.names[number]} has no gradient at this step while others have: "
                           f"PyTorch's {self._kind} leaves it alone, the server's moves it by momentum or weight decay. "
                           "requires_grad_(False) before join() for what the loss never uses; for what it uses now and then, "
                           + _STEPS_HERE.format(kind=self._kind))

    def _state_is_read(self, _: torch.optim.Optimizer, __: dict[str, Any]) -> None:
        if self._steps > 0:
            self._warn("read", "state_dict() of an optimizer that the server computes has no state: momentum and the like are on "
                       "the server. recon.torch.load_optimizer() gives a plain optimizer that of a snapshot; `reconctl snapshot "
                       "export --state` writes it to a file")

    def _state_is_loaded(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if state_names(state.get("state", {})) or self._steps > 0:
            raise RuntimeError("load_state_dict() of an optimizer that the server computes: its state is on the server and would "
                               "stay as it is. Go back with `reconctl rollback`, or begin another job with `recon-server "
                               "--from-snapshot`")


def refuse_state(optimizer: torch.optim.Optimizer) -> None:
    """ValueError for state that the server's optimizer would not have."""
    names = state_names(optimizer.state)
    if names:
        raise ValueError(
            f"the optimizer brings state of {len(optimizer.state)} parameters along ({', '.join(names)}): the server computes "
            f"{type(optimizer).__name__} and begins without. Go on from a snapshot of a job (`recon-server --from-snapshot`, "
            "which has its optimizer's state); or begin anew with optimizer.state.clear() before join()")


def state_names(state: dict[Any, Any]) -> list[str]:
    """The kinds of values that an optimizer's state has."""
    return sorted({str(name) for of_one in state.values() if isinstance(of_one, dict)
                   for name, value in of_one.items() if value is not None})


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_plain(one) for one in value)
    return value.item() if isinstance(value, torch.Tensor) else value


class _Changes:
    """Sees that gradients are changed between backward and ``step()`` otherwise than by one factor that stays: clipped, say.
    In a synchronous job of several workers that is each worker's own gradient, before the mean."""

    def __init__(self, tensors: Tensors, workers: Callable[[], int]) -> None:
        self._workers = workers
        self._came: dict[int, torch.Tensor] = {}
        self._factor: float | None = None
        self._parameters = sorted(tensors.trained, key=lambda one: one.numel())[:SAMPLED_MAX]
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._hook(number))
                       for number, parameter in enumerate(self._parameters)]

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def came(parameter: torch.Tensor) -> None:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                self._came[number] = sample_of(parameter.grad)
        return outside_compiled(came)

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def at_step(self) -> str:
        """What to warn of, once; empty if there is nothing."""
        came, self._came = self._came, {}
        if not self._hooks or not came:
            return ""
        factor = self._factor_of(came)
        before, self._factor = self._factor, factor if factor is not None else self._factor
        same = factor is not None and (before is None or _alike(factor, before))
        if same or self._workers() < 2:
            return ""
        self.end()
        return ("gradients change between backward() and step(), by clip_grad_norm_() say, in a synchronous job of several "
                "workers: each worker's own gradient is changed, before the mean over workers is made. DistributedDataParallel "
                "would change the mean. The norm of one worker's gradient is larger, by up to the square root of the number of "
                "workers: choose max_norm for it")

    def _factor_of(self, came: dict[int, torch.Tensor]) -> float | None:
        """What all values were multiplied by; None if it is not one factor for all."""
        then, now = [], []
        for number, values in came.items():
            gradient = self._parameters[number].grad
            if gradient is None or gradient.is_sparse:
                continue
            then.append(values.reshape(-1).double().cpu())
            now.append(sample_of(gradient).reshape(-1).double().cpu())
        if not then:
            return 1.0
        first, last = torch.cat(then), torch.cat(now)
        largest = int(first.abs().argmax())
        if float(first[largest]) == 0 or not bool(first.isfinite().all() and last.isfinite().all()):
            return 1.0
        ratio = float(last[largest] / first[largest])
        error = (last - ratio * first).abs().max() / first[largest].abs()
        if ratio <= 0 or float(error) > RATIO_ERROR * ratio:
            return None
        return ratio


def _alike(one: float, other: float) -> bool:
    """But for a power of two, as a GradScaler's scale is one."""
    apart = abs(math.log2(one / other)) % 1
    return min(apart, 1 - apart) <= RATIO_ERROR
