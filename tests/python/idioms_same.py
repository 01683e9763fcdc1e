"""Rows of the table of idioms: what a script does to its model and its gradients is what it is in plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from idioms import adamw, make_model, same, sgd, train
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch_small import DATA
from twin import Run

X, Y = DATA.tensors


# What is read after step().


@same("after each step the parameters are those that it made")
def _(run: Run) -> Any:
    model, seen = make_model(), []
    train(run, model, after=lambda _: seen.append(model[0].weight.detach().clone()))
    return seen


@same("a teacher that follows by an exponential mean")
def _(run: Run) -> Any:
    model = make_model()
    teacher = copy.deepcopy(model)

    @torch.no_grad()
    def follow(_: int) -> None:
        for old, new in zip(teacher.parameters(), model.parameters()):
            old.lerp_(new, 0.1)

    train(run, model, after=follow)
    return teacher


@same("an AveragedModel of torch.optim.swa_utils")
def _(run: Run) -> Any:
    model = make_model()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    train(run, model, after=lambda number: number % 5 == 4 and averaged.update_parameters(model))
    return averaged


@same("a momentum encoder whose keys the loss is made of")
def _(run: Run) -> Any:
    model = make_model()
    encoder = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def follow(_: int) -> None:
        for old, new in zip(encoder.parameters(), model.parameters()):
            old.mul_(0.9).add_(new, alpha=0.1)

    train(run, model, after=follow, loss=lambda m, x, y: functional.cross_entropy(m(x), y)
          + (m(x) - encoder(x)).square().mean())
    return [model, encoder]


@same("a generator outside the job that learns from a discriminator in it")
def _(run: Run) -> Any:
    torch.manual_seed(1)
    generator, judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    theirs, its = sgd(generator), sgd(judge)
    loader, noise = run.loader(DATA), torch.Generator().manual_seed(3)
    loss = functional.binary_cross_entropy_with_logits
    run.join(judge, its, loader)
    for x, _ in loader:
        made = torch.randn(len(x), 8, generator=noise)
        one, zero = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        its.zero_grad()
        (loss(judge(x), one) + loss(judge(generator(made).detach()), zero)).backward()
        its.step()
        theirs.zero_grad()
        loss(judge(generator(made)), one).backward()
        theirs.step()
    return [judge, generator]


@same("validation and state_dict at the end of each pass")
def _(run: Run) -> Any:
    model, seen = make_model(), []

    @torch.no_grad()
    def look(_: int) -> None:
        seen.append([float(functional.cross_entropy(model(X), Y)), copy.deepcopy(model.state_dict())])

    train(run, model, epochs=3, after_pass=look)
    return seen


@same("the best state of all passes, loaded when the job is done")
def _(run: Run) -> Any:
    model, best = make_model(), [float("inf"), {}]

    @torch.no_grad()
    def keep(_: int) -> None:
        loss = float(functional.cross_entropy(model(X), Y))
        if loss < best[0]:
            best[:] = [loss, copy.deepcopy(model.state_dict())]

    train(run, model, epochs=3, after_pass=keep)
    model.load_state_dict(best[1])
    return model


@same("averaged weights that are swapped in for a validation, and out again")
def _(run: Run) -> Any:
    model, losses = make_model(), []
    averaged = copy.deepcopy(model)

    @torch.no_grad()
    def swap(number: int) -> None:
        for old, new in zip(averaged.parameters(), model.parameters()):
            old.lerp_(new, 0.2)
        if number % 10 == 9:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(averaged.state_dict())
            losses.append(float(functional.cross_entropy(model(X), Y)))
            model.load_state_dict(kept)

    train(run, model, epochs=2, after=swap)
    return [model, losses]


@same("norms of weights and gradients that are logged after each step")
def _(run: Run) -> Any:
    model, seen = make_model(), []
    train(run, model, after=lambda _: seen.append([float(p.detach().norm() + p.grad.norm()) for p in model.parameters()]))
    return seen


# Gradients.


def clipped(model: nn.Module) -> Any:
    return lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.5)


@same("gradients that are clipped by their norm")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=clipped(model))


@same("gradients that are clipped by their values")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=lambda _: nn.utils.clip_grad_value_(model.parameters(), 0.01))


@same("gradients that are changed through .data from the first step on")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=lambda _: [p.grad.data.mul_(0.5) for p in model.parameters()])


@same("noise that is added to gradients")
def _(run: Run) -> Any:
    model, noise = make_model(), torch.Generator().manual_seed(2)
    return train(run, model, changes=lambda _: [p.grad.add_(0.01 * torch.randn(p.shape, generator=noise))
                                                for p in model.parameters()])


@same("gradients that the script makes itself")
def _(run: Run) -> Any:
    model = make_model()

    def replace(_: int) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad.sign() * 0.01

    return train(run, model, changes=replace)


@same("gradients whose mean is taken away")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=lambda _: [p.grad.sub_(p.grad.mean(1, keepdim=True)) for p in model.parameters()
                                                if p.dim() == 2])


@same("hooks of tensors that scale gradients in backward")
def _(run: Run) -> Any:
    model = make_model()
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return train(run, model)


@same("a GradScaler, and clipping after unscale_")
def _(run: Run) -> Any:
    model = make_model()
    optimizer, scaler, loader = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0), run.loader(DATA)
    run.join(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return model


@same("autocast")
def _(run: Run) -> Any:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(model(x), y)

    return train(run, loss=loss)


@same("a penalty on the gradient, by a second backward")
def _(run: Run) -> Any:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_(True)
        first = functional.cross_entropy(model(x), y)
        gradient, = torch.autograd.grad(first, x, create_graph=True)
        return first + gradient.square().sum()

    return train(run, loss=loss)


@same("two losses with a backward each")
def _(run: Run) -> Any:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output = model(x)
        output.square().mean().backward(retain_graph=True)
        return functional.cross_entropy(output, y)

    return train(run, loss=loss)


@same("a perturbation of the parameters that is taken back before the step, as SAM makes")
def _(run: Run) -> Any:
    model, moved = make_model(), []

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moved[:] = [p.grad * (0.05 / norm) for p in model.parameters()]
            for parameter, by in zip(model.parameters(), moved):
                parameter.add_(by)
                parameter.grad = None
        return functional.cross_entropy(model(x), y)

    @torch.no_grad()
    def back(_: int) -> None:
        for parameter, by in zip(model.parameters(), moved):
            parameter.sub_(by)

    return train(run, model, loss=loss, changes=back)


@same("activations that are computed again in backward")
def _(run: Run) -> Any:
    from torch.utils.checkpoint import checkpoint

    return train(run, loss=lambda model, x, y: functional.cross_entropy(checkpoint(model, x, use_reentrant=False), y))


@same("zero_grad that keeps the gradients' memory")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, after=lambda _: model.zero_grad(set_to_none=False))


@same("a penalty on the sum of absolute weights, in the loss")
def _(run: Run) -> Any:
    return train(run, loss=lambda model, x, y: functional.cross_entropy(model(x), y)
                 + 1e-3 * sum(p.abs().sum() for p in model.parameters()))


# Accumulation and loops.


@same("gradients that are accumulated over four batches")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = sgd(model)
    run.join(model, optimizer, loader, epochs=2)
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            (functional.cross_entropy(model(x), y) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    return model


@same("batches that the script passes over")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = sgd(model)
    run.join(model, optimizer, loader)
    for number, (x, y) in enumerate(loader):
        if number % 3 == 1:
            continue
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@same("a step by a closure")
def _(run: Run) -> Any:
    model, loader, losses = make_model(), run.loader(DATA), []
    optimizer = sgd(model)
    run.join(model, optimizer, loader)
    for x, y in loader:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        losses.append(optimizer.step(closure).detach())
    return [model, losses]


# Models.


@same("running means of a BatchNorm, and its counter")
def _(run: Run) -> Any:
    return train(run, make_model(lambda: nn.BatchNorm1d(32)))


@same("a BatchNorm that stays in eval()")
def _(run: Run) -> Any:
    model = make_model(lambda: nn.BatchNorm1d(32))
    model[2].eval()
    return train(run, model)


@same("dropout by a seed of its own each step")
def _(run: Run) -> Any:
    seeds = iter(range(1000))

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(next(seeds))
        return functional.cross_entropy(model(x), y)

    return train(run, make_model(lambda: nn.Dropout(0.2)), loss=loss)


@same("weights that two layers share")
def _(run: Run) -> Any:
    model = make_model(lambda: nn.Linear(32, 32), nn.ReLU, lambda: nn.Linear(32, 32))
    model[4].weight = model[2].weight
    return train(run, model)


@same("a layer that is frozen before the job")
def _(run: Run) -> Any:
    model = make_model()
    model[0].requires_grad_(False)
    return train(run, model, adamw(model))


class Picks(nn.Module):
    """Some samples' features pick rows of a table."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows, self.head = nn.Embedding(50, 8, **options), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows((x[:, :6] * 8).long().clamp(-24, 25) + 24).mean(1))


@same("an embedding with sparse gradients")
def _(run: Run) -> Any:
    return train(run, Picks(sparse=True))


@same("an embedding with a row for padding")
def _(run: Run) -> Any:
    return train(run, Picks(padding_idx=24), epochs=2)


@same("a recurrent layer")
def _(run: Run) -> Any:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x.view(-1, 4, 4))[0][:, -1])

    return train(run, Recurrent())


@same("attention")
def _(run: Run) -> Any:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return train(run, nn.Sequential(nn.Unflatten(1, (4, 4)), layer, nn.Flatten(), nn.Linear(16, 4)))


@same("convolutions in channels_last")
def _(run: Run) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(),
                          nn.Linear(16, 4)).to(memory_format=torch.channels_last)
    return train(run, model)


@same("weights that are normed in forward", tolerance=3e-6)
def _(run: Run) -> Any:
    model = make_model()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    return train(run, model)


@same("weights that are clamped in forward")
def _(run: Run) -> Any:
    class Clamped(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.clamp(-0.05, 0.05)

    model = make_model()
    parametrize.register_parametrization(model[0], "weight", Clamped())
    return train(run, model)


@same("masks of torch.nn.utils.prune")
def _(run: Run) -> Any:
    model = make_model()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return train(run, model, epochs=2)


# Compiled.


@same("a compiled model")
def _(run: Run) -> Any:
    model = make_model()
    train(run, torch.compile(model, backend="eager"), sgd(model))
    return model


@same("a compiled step()")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = sgd(model, momentum=0.9)
    run.join(model, optimizer, loader)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        step()
    return model


@same("a training step that is compiled as a whole")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = sgd(model)
    run.join(model, optimizer, loader)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for x, y in loader:
        step(x, y)
    return model
