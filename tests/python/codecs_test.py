#!/usr/bin/env python3
"""What codecs may not change: small and large gradients, buffers and counters train beside plain PyTorch on the same
batches. Environment: RECON_TEST_BIN, the programs."""

import json
import unittest
from collections.abc import Callable
from typing import Any

from torch_small import DATA, BATCH, Case, accuracy, loss_of, make_model, sgd
import recon
import recon.torch as rt
import torch
from jobs import Script
from torch import nn
from torch.nn import functional

STEPS = 20  # Of a pass.


class Counts(nn.Module):
    """Counts in an integer buffer, as PyTorch's BatchNorm does, and by more."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += self.by
        return x


class Codecs(Case):
    def twins(self, make_optimizer: Callable[[nn.Module], Any], make: Callable[[], nn.Module] = make_model, epochs: int = 1,
              loss: Callable[..., torch.Tensor] = functional.cross_entropy, data: Any = DATA,
              **settings: Any) -> tuple[nn.Module, nn.Module, float]:
        """One model trained in a job, one by PyTorch alone, and the largest difference of their parameters."""
        ours, plain = make(), make()
        optimizer, plain_optimizer = make_optimizer(ours), make_optimizer(plain)
        loader, _ = self.join(ours, optimizer, rt.DataLoader(data, batch_size=BATCH), epochs=epochs, **settings)
        for _ in range(epochs):
            for x, y in loader:
                for model, its in ((ours, optimizer), (plain, plain_optimizer)):
                    its.zero_grad()
                    loss(model(x), y).backward()
                    its.step()
        self.expect_done()
        difference = max(float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), plain.parameters()))
        ours.eval()
        plain.eval()
        return ours, plain, difference

    def test_gradients_below_the_range_of_fp16_train_as_plain_pytorch_does(self) -> None:
        for scale, epsilon in ((1e-8, 1e-16), (1e-7, 1e-8), (1e-12, 1e-20)):
            # Adam makes much of what feedback sends a step later.
            for settings, most in (({}, 0.01), ({"codec": "topk:1"}, 0.05)):
                with self.subTest(scale=scale, **settings):
                    self.setUp()
                    ours, plain, difference = self.twins(
                        lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, eps=epsilon), epochs=3,
                        loss=lambda out, y: scale * functional.cross_entropy(out, y), **settings)
                    self.assertGreater(accuracy(plain), 0.97)
                    self.assertLess(abs(accuracy(ours) - accuracy(plain)), 0.01)
                    self.assertLess(difference, most)

    def test_gradients_above_the_range_of_fp16_are_not_cut(self) -> None:
        for settings in ({}, {"codec": "topk:1"}):
            with self.subTest(**settings):
                self.setUp()
                ours, plain, difference = self.twins(
                    lambda model: sgd(model, 1e-9), loss=lambda out, y: 1e8 * functional.cross_entropy(out, y), **settings)
                self.assertGreater(accuracy(plain), 0.97)
                self.assertLess(difference, 1e-3)

    def test_a_batchnorm_has_its_running_statistics_under_every_codec(self) -> None:
        # Of the inputs, which no codec changes.
        def make() -> nn.Module:
            torch.manual_seed(3)
            return nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

        for settings in ({"codec": "topk:0.02"}, {"codec": "topk:0.1", "pull_codec": "fp16"}, {"codec": "int8"},
                         {"codec": "randomk:0.1"}, {"codec": "bf16", "pull_codec": "bf16"}):
            with self.subTest(**settings):
                self.setUp()
                ours, plain, _ = self.twins(sgd, make, epochs=10, **settings)
                for name in ("running_mean", "running_var"):
                    torch.testing.assert_close(getattr(ours[0], name), getattr(plain[0], name), rtol=1e-5, atol=1e-5)
                self.assertEqual(int(ours[0].num_batches_tracked), 10 * STEPS)
                self.assertEqual(int(ours[2].num_batches_tracked), 10 * STEPS)
                self.assertGreater(float(ours[2].running_var.min()), 0)
                self.assertGreater(accuracy(ours), 0.97)

    def test_a_residual_network_of_convolutions_keeps_its_statistics_under_topk(self) -> None:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return functional.relu(x + self.norm(self.convolution(x)))

        def make() -> nn.Module:
            torch.manual_seed(3)
            return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), Residual(),
                                 Residual(), nn.Flatten(), nn.Linear(128, 4))

        ours, plain, _ = self.twins(lambda model: sgd(model, 0.02), make, epochs=10, codec="topk:0.05")
        for module in ours.modules():
            if isinstance(module, nn.BatchNorm2d):
                self.assertGreater(float(module.running_var.min()), 0)
                self.assertEqual(int(module.num_batches_tracked), 10 * STEPS)
        self.assertGreater(accuracy(plain), 0.97)
        self.assertGreater(accuracy(ours), 0.95)

    def test_integer_counters_are_exact_under_every_codec(self) -> None:
        # The second goes beyond the integers that float32 has.
        for by in (100_003, 2_000_001):
            for settings in ({}, {"codec": "bf16", "pull_codec": "fp16"}, {"codec": "fp32"}, {"codec": "topk:0.02"}):
                with self.subTest(by=by, **settings):
                    self.setUp()
                    ours, plain, _ = self.twins(sgd, lambda: make_model(Counts(by)), epochs=2, **settings)
                    self.assertEqual(int(plain[2].seen), 2 * STEPS * by)
                    self.assertEqual(int(ours[2].seen), 2 * STEPS * by)

    def test_integers_are_exact_in_the_jobs_state_too(self) -> None:
        model = make_model(Counts(2_000_001))
        optimizer = sgd(model)
        loader, job = self.join(model, optimizer, epochs=1)
        for steps, batch in enumerate(loader, 1):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            self.assertEqual(int(job.state_dict()["2.seen"]), steps * 2_000_001)

    def test_integers_of_two_workers_that_agree_are_exact(self) -> None:
        workers = [Script(self.server, name, script="count_small.py") for name in ("a", "b")]
        for worker in workers:
            self.assertEqual(worker.wait(), 0, worker.log())
        seen = [json.loads(worker.log().splitlines()[-1]) for worker in workers]
        steps = max(int(one["step"]) for one in seen) + 1
        self.assertEqual({one["tracked"] for one in seen}, {steps})
        self.assertEqual({one["seen"] for one in seen}, {steps * 2_000_001})

    def test_statistics_of_large_features_are_those_of_plain_pytorch(self) -> None:
        x, y = DATA.tensors
        large = torch.utils.data.TensorDataset(1e4 * x, y)
        for settings in ({}, {"codec": "topk:0.1", "pull_codec": "fp16"}):
            with self.subTest(**settings):
                self.setUp()
                ours, plain, _ = self.twins(lambda model: sgd(model, 1e-12), lambda: make_model(nn.BatchNorm1d(32)), data=large,
                                            **settings)
                self.assertGreater(float(plain[2].running_var.max()), 1e7)
                torch.testing.assert_close(ours[2].running_var, plain[2].running_var, rtol=1e-3, atol=0)

    def test_a_codec_that_is_said_of_buffers_is_refused_by_name(self) -> None:
        model = make_model(nn.BatchNorm1d(32))
        with self.assertRaisesRegex((recon.Refused, ValueError, RuntimeError), "group buffers: its tensors are averaged"):
            self.join(model, sgd(model), codec="topk:0.1,buffers=topk:0.1")


if __name__ == "__main__":
    unittest.main()
