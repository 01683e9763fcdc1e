"""What of a model a job whose workers have the optimizer exchanges in each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from recon.torch._tensors import DTYPES


def trained(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[list[str], list[torch.nn.Parameter]]:
    """Names and parameters that the optimizers have. TypeError for one that is not the model's."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    found: dict[str, torch.nn.Parameter] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise TypeError(f"the {type(optimizer).__name__} optimizer has a parameter of shape {list(parameter.shape)} that "
                                    f"{type(model).__name__} has not")
                if parameter.is_floating_point() and parameter.numel() > 0:
                    found[names[id(parameter)]] = parameter
    if not found:
        raise TypeError(f"no parameter of {type(model).__name__} is an optimizer's: there is nothing to train")
    return list(found), list(found.values())


def aliases(model: torch.nn.Module, names: Mapping[int, str]) -> list[tuple[str, str]]:
    """Other names of tied parameters, each with the one that counts."""
    return [(name, names[id(parameter)]) for name, parameter in model.named_parameters(remove_duplicate=False)
            if names.get(id(parameter), name) != name]


def hooked(parameter: torch.nn.Parameter, came: Callable[[torch.Tensor], None]) -> Any:
    # A frozen one may be trained later.
    needed = parameter.requires_grad
    parameter.requires_grad_(True)
    hook = parameter.register_post_accumulate_grad_hook(came)
    parameter.requires_grad_(needed)
    return hook


def shared_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    persistent = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers()
            if name in persistent and buffer.numel() > 0 and buffer.dtype in DTYPES
            and (not buffer.is_floating_point() or bool(buffer.isfinite().all()))]
