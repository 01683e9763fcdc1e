"""torch's optimizers as settings of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from recon._optimizers import Adam, AdamW, SGD

# What the server has no equal of, by what it must be there.
_ABSENT = {"amsgrad": False, "maximize": False, "dampening": 0, "decoupled_weight_decay": False}


def settings_of(optimizer: torch.optim.Optimizer, group_names: Sequence[str]) -> list[tuple[str, str]]:
    """The flags of recon-server that make it compute what `optimizer` computes, exactly.

    Raises TypeError for an optimizer that the server has not.
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise TypeError(f"{kind.__name__} is no optimizer that the server computes: those are torch.optim.SGD, Adam and "
                        "AdamW")
    groups: list[dict[str, Any]] = optimizer.param_groups
    for number, group in enumerate(groups):
        for option, value in _ABSENT.items():
            if option == "decoupled_weight_decay" and kind is torch.optim.AdamW:
                continue
            if group.get(option, value) != value:
                raise TypeError(f"{kind.__name__}({option}={group[option]}) of parameter group {number} is nothing that "
                                f"the server computes: {option}={value}")
        for option in ("momentum", "nesterov", "betas", "eps"):
            if option in group and group[option] != groups[0][option]:
                raise TypeError(f"parameter group {number} has {option}={group[option]}, group 0 has "
                                f"{groups[0][option]}: the server has one for all groups")
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
