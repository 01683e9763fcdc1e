"""A small job for tests of the PyTorch package: its data, its model, and a server for each test. Environment:
RECON_TEST_BIN, the programs."""

import os
import unittest
from collections.abc import Callable
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon.torch as rt
from jobs import Server
from torch import nn
from torch.nn import functional

BINARIES = os.environ["RECON_TEST_BIN"]
SAMPLES, BATCH = 1000, 50
# Where a test's script does not say it, "server" or None, which is on workers.
OPTIMIZER_ON = os.environ.get("RECON_TEST_OPTIMIZER_ON")


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    centers = 2 * torch.randn(4, 16, generator=generator)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    return torch.utils.data.TensorDataset(centers[labels] + torch.randn(SAMPLES, 16, generator=generator), labels)


DATA = make_data()


def make_model(*middle: nn.Module, hidden: int = 32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), *middle, nn.Linear(hidden, 4))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    x, y = DATA.tensors
    return float((model(x).argmax(1) == y).double().mean())


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch.set_num_threads(1)
        self.server = Server(BINARIES, *getattr(self, "flags", ()))
        self.addCleanup(self.server.__exit__)
        os.environ["RECON_SERVER"] = self.server.address

    def join(self, model: nn.Module, optimizer: Any, loader: Any = None, **settings: Any) -> tuple[Any, Any]:
        loader = rt.DataLoader(DATA, batch_size=BATCH) if loader is None else loader
        job = rt.join(model, optimizer, loader, **{"epochs": 2, "optimizer_on": OPTIMIZER_ON, **settings})
        self.addCleanup(job.leave)
        return loader, job

    def train(self, model: nn.Module, optimizer: Any, loader: Any = None, epochs: int = 2,
              before_step: Callable[[], Any] = lambda: None, **settings: Any) -> None:
        loader, _ = self.join(model, optimizer, loader, epochs=epochs, **settings)
        for _ in range(epochs):
            for batch in loader:
                loss_of(model, batch).backward()
                before_step()
                optimizer.step()
                optimizer.zero_grad()

    def expect_done(self, epochs: int = 2) -> None:
        self.assertEqual(self.server.phase(), "PHASE_FINISHED")
