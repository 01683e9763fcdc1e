"""Rows of the table of idioms: what the server's optimizer cannot do as plain PyTorch does. The script is told, by name. Where
workers have the optimizer it does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from idioms import adamw, make_model, refused, sgd, train, warned, wrong
from idioms_same import Picks
from torch import nn
from torch.nn import functional
from torch_small import DATA
from twin import Run

kinds = torch.optim.lr_scheduler


# Parameters that the script edits.


@refused("a clamp of the parameters after a step", r"parameter 0\.weight of Sequential .* after step\(\) number 1 the script "
         r"changed \d+ of its 512 values, by up to 0\.")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, after=lambda _: [p.data.clamp_(-0.05, 0.05) for p in model.parameters()])


@refused("a mask that is multiplied after a step", r"parameter 2\.weight .*after step\(\) number 1 ")
def _(run: Run) -> Any:
    model = make_model()
    mask = torch.arange(128).view(4, 32) % 2
    return train(run, model, after=lambda _: model[2].weight.data.mul_(mask))


@refused("a decay by hand after a step", r"parameter 0\.weight .*after step\(\) number 1 ")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, after=lambda _: [p.data.mul_(1 - 1e-5) for p in model.parameters()])


@refused("an embedding with max_norm", r"parameter rows\.weight of Picks .*before this step\(\) the script changed")
def _(run: Run) -> Any:
    model = Picks(max_norm=0.5)
    return train(run, model, sgd(model, 1.0))


@refused("a scale that is clamped once it has grown", r"parameter scale .*after step\(\) number [1-9].* 1 of its 1 values")
def _(run: Run) -> Any:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.scale = make_model(), nn.Parameter(torch.tensor(0.99))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) * self.scale.exp()

    model = Scaled()
    return train(run, model, after=lambda _: model.scale.data.clamp_(0, 1.0))


@refused("an earlier state that is loaded in the middle", r"parameter 0\.weight .*after step\(\) number 11 ")
def _(run: Run) -> Any:
    model, kept = make_model(), {}

    def back(number: int) -> None:
        if number == 0:
            kept.update(copy.deepcopy(model.state_dict()))
        if number == 10:
            model.load_state_dict(kept)

    return train(run, model, after=back)


@refused("weights of another model that are left in after a validation", r"parameter 0\.weight .*before the batch of step\(\) "
         "number 21 ")
def _(run: Run) -> Any:
    model, other = make_model(), make_model(nn.Identity)
    return train(run, model, epochs=2, after_pass=lambda _: [p.data.copy_(q + 1) for p, q in zip(model.parameters(),
                                                                                       other.parameters())])


@refused("a large model's parameters that are edited in the first steps", r"parameter 0\.weight .*after step\(\) number 3 ")
def _(run: Run) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 20_000), nn.ReLU(), nn.Linear(20_000, 50), nn.Linear(50, 4))
    return train(run, model, sgd(model, 1e-3), after=lambda number: number == 2 and model[0].weight.data.add_(1))


# Settings of the optimizer.


def with_scheduler(optimizer: Any, scheduler: Any, run: Run, model: nn.Module) -> nn.Module:
    return train(run, model, optimizer, after=lambda _: scheduler.step())


@refused("OneCycleLR as it is", r"momentum of the optimizer's group 0 is 0\.9\d* at this step and was 0\.95 at join\(\)"
         r".*cycle_momentum=False")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model, momentum=0.9)
    return with_scheduler(optimizer, kinds.OneCycleLR(optimizer, 0.2, total_steps=41), run, model)


@refused("CyclicLR as it is", r"momentum of the optimizer's group 0 is .*cycle_momentum=False")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model, momentum=0.9)
    return with_scheduler(optimizer, kinds.CyclicLR(optimizer, 0.01, 0.1, step_size_up=5), run, model)


@refused("OneCycleLR as it is, with AdamW", r"betas of the optimizer's group 0 is \(0\.9\d*, 0\.999\) at this step")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = adamw(model)
    return with_scheduler(optimizer, kinds.OneCycleLR(optimizer, 0.2, total_steps=41), run, model)


def set_later(make: Callable[[nn.Module], Any], **values: Any) -> Callable[[Run], Any]:
    """At step 10, of the last group."""
    def script(run: Run) -> Any:
        model = make_model()
        optimizer = make(model)
        return train(run, model, optimizer, changes=lambda number: number == 10 and optimizer.param_groups[-1].update(values))
    return script


refused("weight decay that is set later", r"weight_decay of the optimizer's group 0 is 0\.5 at this step and was 0\.0 at")(
    set_later(lambda m: adamw(m, weight_decay=0.0), weight_decay=0.5))
refused("momentum that is set later", r"momentum of the optimizer's group 0 is 0\.9 at this step and was 0 at")(
    set_later(sgd, momentum=0.9))
refused("Nesterov's momentum that is set later", r"nesterov of the optimizer's group 0 is True at this step and was False")(
    set_later(lambda m: sgd(m, momentum=0.9), nesterov=True))
refused("Adam's epsilon that is set later", r"eps of the optimizer's group 0 is 0\.001 at this step and was 1e-08")(
    set_later(adamw, eps=1e-3))
refused("a decay of one group that is set later", r"weight_decay of the optimizer's group 1 is 0\.5 at this step and was 0\.0")(
    set_later(lambda m: torch.optim.AdamW([{"params": m[0].parameters()}, {"params": m[2].parameters(), "weight_decay": 0.0}]),
              weight_decay=0.5))


# State of the optimizer.


def stepped(make: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    """A model after a step of plain PyTorch."""
    model = make_model()
    optimizer = make(model)
    functional.cross_entropy(model(DATA[:50][0]), DATA[:50][1]).backward()
    optimizer.step()
    return model, optimizer


@refused("Adam's state that is brought along", r"state of 4 parameters along \(exp_avg, exp_avg_sq, step\).*AdamW.*"
         r"optimizer\.state\.clear\(\)", ValueError)
def _(run: Run) -> Any:
    model, optimizer = stepped(adamw)
    return train(run, model, optimizer)


@refused("momentum that is brought along", r"state of 4 parameters along \(momentum_buffer\).*--from-snapshot", ValueError)
def _(run: Run) -> Any:
    model, optimizer = stepped(lambda m: sgd(m, momentum=0.9))
    return train(run, model, optimizer)


@refused("an optimizer's state that is loaded in the middle", r"load_state_dict\(\) of an optimizer that the server computes")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = adamw(model)
    return train(run, model, optimizer, after=lambda number: number == 5 and optimizer.load_state_dict(optimizer.state_dict()))


@refused("the state of another run that is loaded before the first step", r"load_state_dict\(\) of an optimizer that the server")
def _(run: Run) -> Any:
    _, other = stepped(adamw)
    model, loader = make_model(), run.loader(DATA)
    optimizer = adamw(model)
    run.join(model, optimizer, loader)
    optimizer.load_state_dict(other.state_dict())
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [model, optimizer.state_dict()["state"]]


@warned("an optimizer's state that is read for a checkpoint", r"state_dict\(\) of an optimizer that the server computes has no "
        r"state.*load_optimizer", equal=True)
def _(run: Run) -> Any:
    model = make_model()
    optimizer = adamw(model)
    return train(run, model, optimizer, epochs=3, after_pass=lambda _: optimizer.state_dict())


# What is trained.


@refused("a layer that is frozen later, with AdamW", r"parameter 0\.weight was trained at join\(\) and has requires_grad=False at "
         r"this step: the server's AdamW would go on moving it")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, adamw(model), after=lambda number: number == 9 and model[0].requires_grad_(False))


@refused("a layer that is frozen later, with momentum", r"parameter 0\.weight was trained at join\(\)")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, sgd(model, momentum=0.9), after=lambda number: number == 9 and model[0].requires_grad_(False))


@warned("a layer that some steps leave out, with AdamW", r"parameter 2\.weight has no gradient at this step while others have")
def _(run: Run) -> Any:
    model = make_model(lambda: nn.Linear(32, 32))
    numbers = iter(range(1000))

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inner = model[1](model[0](x))
        return functional.cross_entropy(model[3](inner if next(numbers) % 3 == 2 else inner + model[2](inner)), y)

    return train(run, model, adamw(model), loss=loss)


@warned("a parameter that the loss never uses, with a decay", r"parameter unused has no gradient at this step")
def _(run: Run) -> Any:
    model = make_model()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return train(run, model, adamw(model))


@refused("a layer that is unfrozen later", r"a parameter of shape \[32, 16\] in the optimizer's group 0 has a gradient", TypeError)
def _(run: Run) -> Any:
    model = make_model()
    model[0].requires_grad_(False)
    return train(run, model, after=lambda number: number == 9 and model[0].requires_grad_(True))


# Gradients that are changed when they are on their way.


def changes_from(step: int, change: Callable[[torch.Tensor], Any]) -> Callable[[Run], Any]:
    def script(run: Run) -> Any:
        model = make_model()
        return train(run, model, changes=lambda number: number >= step and [change(p.grad) for p in model.parameters()])
    return script


warned("gradients that are changed through .data from the tenth step on", r"a gradient changed between backward\(\) and step\(\)")(
    changes_from(10, lambda gradient: gradient.data.mul_(0.01)))
warned("gradients that are changed from the tenth step on", r"a gradient changed between backward\(\) and step\(\)")(
    changes_from(10, lambda gradient: gradient.mul_(0.01)))


@warned("a second backward from the tenth step on", r"gradients were accumulated over several backward passes")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=lambda number: number >= 10 and model(DATA[:50][0]).square().mean().backward())


@warned("a rate that is set between backward and step from the tenth step on", r"the learning rate changed between backward")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model)
    return train(run, model, optimizer, changes=lambda number: number == 10 and optimizer.param_groups[0].update(lr=0.01))


@wrong("clipping where overlap was promised", r"overlap=True")
def _(run: Run) -> Any:
    model = make_model()
    return train(run, model, changes=lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.1), overlap=True)


# What join() is given.


def joins(make: Callable[[nn.Module], Any]) -> Callable[[Run], Any]:
    def script(run: Run) -> Any:
        model = make_model()
        return train(run, model, make(model))
    return script


refused("two optimizers in a list", r"given 2 optimizers \(SGD over 0\.weight, 0\.bias; AdamW over 2\.weight, 2\.bias\): a job has "
        r"one\..*groups", TypeError)(joins(lambda m: [sgd(m[0]), adamw(m[2])]))
refused("optimizers in a dict", r"given 2 optimizers \(SGD over 0\.weight", TypeError)(
    joins(lambda m: {"a": sgd(m[0]), "b": adamw(m[2])}))
refused("an optimizer over a part of the parameters", r"2\.weight, 2\.bias of Sequential require a gradient, and the optimizer has "
        r"only 2 of 4", TypeError)(joins(lambda m: sgd(m[0])))
wrong("an optimizer over another model", r"the optimizer has 4 parameters that Sequential has not", TypeError,
      r"SGD optimizer has a parameter of shape \[32, 16\] that Sequential has not")(
    joins(lambda m: torch.optim.SGD([*m.parameters(), *make_model().parameters()], lr=0.1)))
wrong("something that is no optimizer", r"was given a builtins\.float as optimizer", TypeError)(joins(lambda m: 0.1))


@wrong("one optimizer and two jobs", r"this optimizer has a job already")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model)
    train(run, model, optimizer)
    run.join(model, optimizer, run.loader(DATA))


@refused("a step without a backward", r"step\(\) without backward\(\): no parameter of Sequential has a gradient")
def _(run: Run) -> Any:
    model, loader = make_model(), run.loader(DATA)
    optimizer = sgd(model)
    run.join(model, optimizer, loader)
    for _ in loader:
        optimizer.step()
    return model


@refused("a second step of one batch", r"step\(\) without a batch of the loader")
def _(run: Run) -> Any:
    model = make_model()
    optimizer = sgd(model)
    return train(run, model, optimizer, after=lambda _: optimizer.step())


@wrong("a gradient that is not a number", r"gradient values are infinite or not a number", FloatingPointError,
       r"0\.weight of Sequential has values that are infinite or not a number")
def _(run: Run) -> Any:
    numbers = iter(range(1000))
    return train(run, loss=lambda model, x, y: functional.cross_entropy(model(x), y) * (float("nan") if next(numbers) == 5 else 1))
