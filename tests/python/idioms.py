"""The table of idioms: what a script does, and what is to come of it. The rows are in idioms_*.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_small import DATA
from torch_small import make_model as make_seeded
from twin import TOLERANCE, Run


@dataclass
class Expected:
    """What is to come of a script in a job."""

    equal: bool = True  # To plain PyTorch.
    warns: bool = False
    error: type[BaseException] | None = None
    text: str = ""  # Of the warning or the error, a regular expression.


@dataclass
class Row:
    name: str  # A sentence.
    script: Callable[[Run], Any]
    on_server: Expected  # Where the server has the optimizer.
    on_workers: Expected = field(default_factory=Expected)  # Where workers have it, as join() lets them.
    tolerance: float = TOLERANCE
    workers: int = 1


ROWS: list[Row] = []


def same(name: str, tolerance: float = TOLERANCE, workers: int = 1) -> Callable[..., Any]:
    """The script gives in a job what it gives in plain PyTorch, without a warning."""
    return lambda script: ROWS.append(Row(name, script, Expected(), tolerance=tolerance, workers=workers))


def warned(name: str, text: str, equal: bool = False, workers: int = 1) -> Callable[..., Any]:
    """Where the server has the optimizer the script is warned, once; of several workers one at least: how many there are, each
    hears a while later. Where workers have it, it is as in plain PyTorch."""
    return lambda script: ROWS.append(Row(name, script, Expected(equal, warns=True, text=text), workers=workers))


def refused(name: str, text: str, error: type[BaseException] = RuntimeError) -> Callable[..., Any]:
    """The server cannot do it, and where workers have the optimizer it is as in plain PyTorch."""
    return lambda script: ROWS.append(Row(name, script, Expected(error=error, text=text)))


def wrong(name: str, text: str, error: type[BaseException] = RuntimeError, on_workers: str = "") -> Callable[..., Any]:
    """The script is refused wherever the optimizer is; with another text on workers, where it is given."""
    return lambda script: ROWS.append(Row(name, script, Expected(error=error, text=text),
                                          Expected(error=error, text=on_workers or text)))


_seeding = threading.Lock()  # The random numbers are those of all threads.


def make_model(*middle: Callable[[], nn.Module]) -> nn.Sequential:
    """The same each time, with what `middle` make in it."""
    with _seeding:
        torch.manual_seed(4)
        return make_seeded(*[make() for make in middle])


def sgd(model: nn.Module, rate: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, **options)


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def train(run: Run, model: nn.Module | None = None, optimizer: Any = None, *, epochs: int = 1, batch_size: int = 50,
          loss: Callable[[nn.Module, Any, Any], torch.Tensor] | None = None, changes: Callable[[int], Any] | None = None,
          after: Callable[[int], Any] | None = None, after_pass: Callable[[int], Any] | None = None, **join: Any) -> nn.Module:
    """The plain loop; `changes` between backward and step, `after` each step: both are given the step's number, from 0."""
    model = make_model() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    several = list(optimizer.values()) if isinstance(optimizer, dict) else optimizer if isinstance(optimizer, list) else [optimizer]
    loader = run.loader(DATA, batch_size)
    run.join(model, optimizer, loader, epochs=epochs, **join)
    number = 0
    for epoch in range(epochs):
        for x, y in loader:
            for one in several:
                one.zero_grad()
            (functional.cross_entropy(model(x), y) if loss is None else loss(model, x, y)).backward()
            if changes is not None:
                changes(number)
            for one in several:
                one.step()
            if after is not None:
                after(number)
            number += 1
        if after_pass is not None:
            after_pass(epoch)
    return model
