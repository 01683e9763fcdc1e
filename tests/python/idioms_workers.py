"""Rows of the table of idioms: two workers in a synchronous job, as two ranks of DistributedDataParallel."""

from __future__ import annotations

import copy
from typing import Any

import torch
from idioms import adamw, make_model, same, sgd, train, warned
from torch import nn
from torch.nn import functional
from torch_small import DATA
from twin import Run

X, Y = DATA.tensors


@same("two workers", workers=2)
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, adamw(model))


@same("two workers' teachers", workers=2)
def _(run: Run) -> Any:
    model = make_model()
    teacher = copy.deepcopy(model)

    @torch.no_grad()
    def follow(_: int) -> None:
        for old, new in zip(teacher.parameters(), model.parameters()):
            old.lerp_(new, 0.1)

    return [train(run, model, sgd(model), after=follow), teacher]


@same("two workers of which one evaluates", workers=2)
def _(run: Run) -> Any:
    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, Any]:
        return {"loss": (float(functional.cross_entropy(model(X), Y)) * len(X), len(X))}

    return train(run, evaluate=evaluate)


@same("two workers whose losses are means over tokens", workers=2)
def _(run: Run) -> Any:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        counts = x[:, 0] > 1.5 * run.rank
        run.weigh(int(counts.sum()))
        return functional.cross_entropy(model(x[counts]), y[counts])

    return train(run, loss=loss)


@same("two workers whose gradients are scaled, and halved", workers=2)
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    run.join(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.div_(3)
        scaler.step(optimizer)
        scaler.update()
    return model


@same("two workers that read a batch ahead", workers=2)
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = adamw(model)
    run.join(model, optimizer, loader, epochs=2)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    for _ in range(2):
        before = None
        for batch in loader:
            if before is not None:
                step(before)
            before = batch
        step(before)
    return model


warned("two workers that clip their gradients", r"each worker's own gradient is changed, before the mean over workers", workers=2)(
    lambda run: clips(run, nn.utils.clip_grad_norm_, 0.05))
warned("two workers that clip their gradients' values", r"each worker's own gradient is changed", workers=2)(
    lambda run: clips(run, nn.utils.clip_grad_value_, 0.01))


def clips(run: Run, clip: Any, most: float) -> nn.Module:
    model = make_model()
    return train(run, model, changes=lambda _: clip(model.parameters(), most))
