"""torch's optimizers as settings of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from recon._optimizers import Adam, AdamW, SGD
from recon.torch._tensors import listed

# What the server has no equal of, by what it must be there.
_ABSENT = {"amsgrad": False, "maximize": False, "dampening": 0, "decoupled_weight_decay": False}


# What the server has once, for all groups.
_SHARED = ("momentum", "nesterov", "betas", "eps")


def unwrapped(wrapper: Any) -> Any:
    """The optimizer or scheduler in a wrapper of Accelerate's; anything else as it is. TypeError for an optimizer whose
    wrapper has taken its step() for a GradScaler already, and would go on calling it."""
    if type(wrapper).__module__.split(".")[0] != "accelerate":
        return wrapper
    if getattr(wrapper, "scaler", None) is not None:
        raise TypeError("join() was given an optimizer that Accelerate steps with a GradScaler (mixed_precision='fp16'): "
                        "call join() before accelerator.prepare()")
    return getattr(wrapper, "optimizer", None) or getattr(wrapper, "scheduler", wrapper)


def all_optimizers(given: Any) -> list[torch.optim.Optimizer]:
    """The optimizers that `join` was given. TypeError for something else, RuntimeError for one that is in a job."""
    several = list(given.values()) if isinstance(given, dict) else given
    optimizers = [unwrapped(one) for one in (several if isinstance(several, (list, tuple)) else [several])]
    for one in optimizers:
        if not hasattr(one, "param_groups"):
            raise TypeError(f"join() was given a {type(one).__module__}.{type(one).__name__} as optimizer, expected a "
                            "torch.optim.Optimizer, or a list of them")
        if hasattr(one, "_recon_job"):
            raise RuntimeError("this optimizer has a job already: join once")
    return optimizers


def one_optimizer(optimizer: Any, model: torch.nn.Module) -> Any:
    """The optimizer that `join` was given. TypeError for several of them, or for something else."""
    several = list(optimizer.values()) if isinstance(optimizer, dict) else optimizer
    if isinstance(several, (list, tuple)):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        said = "; ".join(f"{type(one).__name__} over " + listed([names.get(id(parameter), "?") for group in one.param_groups
                                                                 for parameter in group["params"]])
                         for one in several if isinstance(one, torch.optim.Optimizer))
        raise TypeError(f"join() was given {len(several)} optimizers ({said}): a job has one. Where they are of one kind, make "
                        "one with parameter groups, each with its own rate and decay; otherwise one class of "
                        "torch.optim.Optimizer whose step() calls theirs: it steps on the worker")
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"join() was given a {type(optimizer).__module__}.{type(optimizer).__name__} as optimizer, expected a "
                        "torch.optim.Optimizer")
    return optimizer


def is_of_the_server(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the server can compute what it computes."""
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return False
    decoupled = type(optimizer) is torch.optim.AdamW
    for group in optimizer.param_groups:
        if any(group.get(option, value) != value for option, value in _ABSENT.items()
               if not (decoupled and option == "decoupled_weight_decay")):
            return False
        if any(group[option] != optimizer.param_groups[0][option] for option in _SHARED if option in group):
            return False
    return True


def settings_of(optimizer: torch.optim.Optimizer, group_names: Sequence[str]) -> list[tuple[str, str]]:
    """The flags of recon-server that make it compute what `optimizer` computes, exactly. It must be one of the
    server's."""
    kind = type(optimizer)
    groups: list[dict[str, Any]] = optimizer.param_groups
    first = groups[0]
    decay = max(float(group["weight_decay"]) for group in groups)
    rate = float(first.get("initial_lr", first["lr"]))  # Of a scheduler; each push says what counts.
    if kind is torch.optim.SGD:
        settings = SGD(rate, first["momentum"], first["nesterov"], decay).settings()
    else:
        named = AdamW if kind is torch.optim.AdamW else Adam
        settings = named(lr=rate, betas=tuple(first["betas"]), eps=first["eps"], weight_decay=decay).settings()
    for name, group in zip(group_names, groups):
        if len(groups) > 1 and float(group["weight_decay"]) != decay:
            settings.append(("group", f"{name}:weight_decay_scale={float(group['weight_decay']) / decay!r}"))
    return settings
