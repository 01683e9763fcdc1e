"""Rows of the table of idioms: optimizers, their hooks and their schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from idioms import adamw, make_model, same, sgd, train
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_small import DATA
from twin import Run

kinds = torch.optim.lr_scheduler
STEPS = 20  # Of a pass.


def of_kind(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[Run], Any]:
    def script(run: Run) -> Any:
        model = make_model()
        return train(run, model, make(model), epochs=2)
    return script


same("SGD with momentum")(of_kind(lambda m: sgd(m, momentum=0.9)))
same("SGD with Nesterov's momentum and decay")(of_kind(lambda m: sgd(m, momentum=0.9, nesterov=True, weight_decay=1e-3)))
same("Adam")(of_kind(lambda m: torch.optim.Adam(m.parameters(), lr=1e-2)))
same("Adam with an L2 decay")(of_kind(lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=1e-2)))
same("AdamW with a rate that is a tensor")(of_kind(lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2))))
same("groups with rates and decays of their own")(of_kind(lambda m: torch.optim.AdamW(
    [{"params": [m[0].weight, m[2].weight]}, {"params": [m[0].bias, m[2].bias], "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2,
    weight_decay=0.1)))
# These step on the worker.
same("RMSprop", tolerance=5e-6)(of_kind(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3)))
same("Adagrad", tolerance=5e-6)(of_kind(lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2)))
same("AMSGrad", tolerance=5e-6)(of_kind(lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True)))
same("SGD with dampening", tolerance=5e-6)(of_kind(lambda m: sgd(m, momentum=0.9, dampening=0.5)))


class Own(torch.optim.AdamW):
    """A class of the script's: it steps on the worker."""


def own(model: nn.Module, **options: Any) -> Own:
    return Own(model.parameters(), lr=1e-2, **options)


@same("a schedule of weight decay, with an optimizer of the script's class", tolerance=5e-6)
def _(run: Run) -> Any:
    model = make_model()
    optimizer = own(model)
    return train(run, model, optimizer, changes=lambda n: optimizer.param_groups[0].update(weight_decay=0.5 if n > 9 else 0))


@same("parameters that the optimizer's own step() clamps", tolerance=5e-6)
def _(run: Run) -> Any:
    class Clamps(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-0.05, 0.05)
            return result

    model = make_model()
    return train(run, model, Clamps(model.parameters(), lr=0.1))


@same("a state that is brought along by an optimizer of the script's class", tolerance=5e-6)
def _(run: Run) -> Any:
    model = make_model()
    optimizer = own(model)
    x, y = DATA[:50]
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return train(run, model, optimizer)


@same("a layer that is frozen later, with an optimizer of the script's class", tolerance=5e-6)
def _(run: Run) -> Any:
    model = make_model()

    def freeze(number: int) -> None:
        if number == 9:
            model[0].requires_grad_(False)

    return train(run, model, own(model), after=freeze)


@same("a layer that is frozen later, with SGD that keeps nothing")
def _(run: Run) -> Any:
    model = make_model()

    def freeze(number: int) -> None:
        if number == 9:
            model[0].requires_grad_(False)

    return train(run, model, after=freeze)


@same("a layer that some steps leave out, with SGD that keeps nothing")
def _(run: Run) -> Any:
    model = make_model(lambda: nn.Linear(32, 32))
    numbers = iter(range(1000))

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inner = model[1](model[0](x))
        return functional.cross_entropy(model[3](inner if next(numbers) % 3 == 0 else inner + model[2](inner)), y)

    return train(run, model, loss=loss)


@same("a parameter that the loss never uses, without a decay")
def _(run: Run) -> Any:
    model = make_model()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2))


# Hooks, and what others ask of an optimizer.


@same("hooks before and after a step")
def _(run: Run) -> Any:
    model, calls = make_model(), [0, 0]
    optimizer = sgd(model)

    def before(*_: Any) -> None:
        calls[0] += 1
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)

    def after(*_: Any) -> None:
        calls[1] += 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return [train(run, model, optimizer), calls]


@same("hooks of all optimizers, with one that steps on the worker", tolerance=5e-6)
def _(run: Run) -> Any:
    model, calls = make_model(), [0]

    def after(*_: Any) -> None:
        calls[0] += 1

    handle = register_optimizer_step_post_hook(after)
    try:
        return [train(run, model, own(model)), calls]
    finally:
        handle.remove()


@same("an optimizer's state_dict that is read and loaded before the first step, as Accelerate does")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = adamw(model)
    run.join(model, optimizer, loader)
    optimizer.load_state_dict(optimizer.state_dict())
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


# Rates.


@same("a rate that is set by hand before each batch")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model)

    def next_rate(number: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9 ** number

    return train(run, model, optimizer, after=next_rate)


def scheduled(make: Callable[[Any], Any], follows: bool = True, epochs: int = 2) -> Callable[[Run], Any]:
    """Stepped after each batch."""
    def script(run: Run) -> Any:
        model, rates = make_model(), []
        optimizer = sgd(model)
        scheduler = make(optimizer)

        def step(_: int) -> None:
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])

        return [train(run, model, optimizer, epochs=epochs, after=step, **({"scheduler": scheduler} if follows and run.is_job
                                                                           else {})), rates]
    return script


same("OneCycleLR")(scheduled(lambda o: kinds.OneCycleLR(o, 0.2, total_steps=2 * STEPS + 1, cycle_momentum=False)))
same("OneCycleLR that the job does not know")(scheduled(lambda o: kinds.OneCycleLR(
    o, 0.2, total_steps=2 * STEPS + 1, cycle_momentum=False), follows=False))
same("CosineAnnealingLR")(scheduled(lambda o: kinds.CosineAnnealingLR(o, 2 * STEPS)))
same("a warm-up by LambdaLR")(scheduled(lambda o: kinds.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10))))
same("a SequentialLR")(scheduled(lambda o: kinds.SequentialLR(
    o, [kinds.LinearLR(o, total_iters=5), kinds.ExponentialLR(o, 0.95)], [5])))
same("a ChainedScheduler")(scheduled(lambda o: kinds.ChainedScheduler(
    [kinds.CosineAnnealingLR(o, 2 * STEPS), kinds.LinearLR(o, total_iters=5)])))


@same("a StepLR once a pass")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model)
    scheduler = kinds.StepLR(optimizer, 1, 0.5)
    return train(run, model, optimizer, epochs=3, after_pass=lambda _: scheduler.step())


@same("a ReduceLROnPlateau by the loss of a validation")
def _(run: Run) -> Any:
    model = make_model()
    optimizer, x, y = sgd(model, 1.0), *DATA.tensors
    scheduler = kinds.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)

    @torch.no_grad()
    def look(_: int) -> None:
        scheduler.step(functional.cross_entropy(model(x), y))

    return [train(run, model, optimizer, epochs=3, after_pass=look), optimizer.param_groups[0]["lr"]]


def accumulated(batches: int, each_batch: bool, batch_size: int = 50) -> Callable[[Run], Any]:
    """`batches` make a step; the schedule is stepped with them, or after each batch."""
    def script(run: Run) -> Any:
        model, loader, rates = make_model(), run.loader(DATA, batch_size), []
        optimizer = sgd(model)
        steps = 3 * len(loader) // (1 if each_batch else batches)
        scheduler = kinds.OneCycleLR(optimizer, 0.2, total_steps=steps + 1, cycle_momentum=False)
        run.join(model, optimizer, loader, epochs=3, scheduler=scheduler)
        number = 0
        for _ in range(3):
            for x, y in loader:
                (functional.cross_entropy(model(x), y) / batches).backward()
                number += 1
                if number % batches == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                if each_batch or number % batches == 0:
                    scheduler.step()
                    rates.append(optimizer.param_groups[0]["lr"])
        return [model, rates]
    return script


same("a schedule that goes with steps of four batches")(accumulated(4, each_batch=False))
same("a schedule that goes with steps of four batches, where a pass has no multiple of four")(
    accumulated(4, each_batch=False, batch_size=46))
same("a schedule that goes with batches, of which four make a step")(accumulated(4, each_batch=True))
