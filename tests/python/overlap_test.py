"""Gradients that are pushed while backward still runs: the job is the same, and a script that changes them in between
is noticed. Environment: RECON_TEST_BIN, the programs."""

import os
import sys
import unittest
import warnings
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
SAMPLES, BATCH = 1200, 50


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return torch.utils.data.TensorDataset(torch.randn(SAMPLES, 64, generator=generator),
                                          torch.randint(0, 10, (SAMPLES,), generator=generator))


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch.set_num_threads(1)

    def train(self, overlap: bool | None, change: Any = None, sync: str = "bsp", codec: str = "fp32") -> tuple[Any, str]:
        """A whole job; its Job, and the state root."""
        with Server(BINARIES) as server:
            torch.manual_seed(3)
            # Several frames of gradients in FP32.
            model = nn.Sequential(nn.Linear(64, 1500), nn.BatchNorm1d(1500), nn.ReLU(), nn.Linear(1500, 1200), nn.ReLU(),
                                  nn.Linear(1200, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            loader = rt.DataLoader(make_data(), batch_size=BATCH)
            job = rt.join(model, optimizer, loader, optimizer_on="server", epochs=2, overlap=overlap, job_settings={"sync": sync, "seed": 7},
                          server=server.address, codec=codec, residual_flush="1000h")
            self.addCleanup(job.leave)
            step = 0
            for _ in range(2):
                for x, y in loader:
                    functional.cross_entropy(model(x), y).backward()
                    if change is not None:
                        change(step, model, optimizer)
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
            self.assertEqual(int(server.status()["samples_completed"]), 2 * SAMPLES)
            server.drain()
            return job, server.reconctl("snapshot", "list", str(server.data / "snapshots")).splitlines()[-1].split()[-1]


class Same(Case):
    def test_the_state_is_what_it_is_without_overlap(self) -> None:
        for codec in ("fp32", "int8", "topk:0.01"):
            with self.subTest(codec=codec):
                with_overlap, root = self.train(True, codec=codec)
                without, other = self.train(False, codec=codec)
                self.assertEqual(root, other)
                self.assertTrue(with_overlap.overlaps)
                self.assertFalse(without.overlaps)

    def test_an_asynchronous_job_counts_every_sample(self) -> None:
        self.assertTrue(self.train(True, sync="asp", codec="fp16")[0].overlaps)

    def test_it_begins_by_itself_where_nothing_changes_a_gradient(self) -> None:
        job, _ = self.train(None)
        self.assertTrue(job.overlaps)


class Changed(Case):
    def test_clipping_is_seen_before_gradients_are_pushed_early(self) -> None:
        def clip(_: int, model: nn.Module, __: Any) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            job, root = self.train(None, clip)
        self.assertFalse(job.overlaps)
        self.assertEqual(root, self.train(False, clip)[1])

    def test_so_is_a_change_that_autograd_does_not_count(self) -> None:
        def clamp(_: int, model: nn.Module, __: Any) -> None:
            for parameter in model.parameters():
                parameter.grad.data.clamp_(-1e-4, 1e-4)

        job, root = self.train(None, clamp)
        self.assertFalse(job.overlaps)
        self.assertEqual(root, self.train(False, clamp)[1])

    def test_a_change_that_comes_later_is_told_and_ends_the_overlap(self) -> None:
        def late(step: int, model: nn.Module, _: Any) -> None:
            if step == 10:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        with self.assertWarnsRegex(RuntimeWarning, "a gradient changed between backward.. and step"):
            job, _ = self.train(None, late)
        self.assertFalse(job.overlaps)

    def test_a_learning_rate_that_is_set_after_backward_is_told(self) -> None:
        def late(step: int, _: nn.Module, optimizer: Any) -> None:
            if step == 10:
                optimizer.param_groups[0]["lr"] = 0.001

        with self.assertWarnsRegex(RuntimeWarning, "the learning rate changed"):
            job, _ = self.train(None, late)
        self.assertFalse(job.overlaps)

    def test_with_a_promise_a_change_is_an_error(self) -> None:
        def clip(_: int, model: nn.Module, __: Any) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        with self.assertRaisesRegex(RuntimeError, "overlap=True"):
            self.train(True, clip)


class Loops(Case):
    def begin(self, **settings: Any) -> tuple[Any, ...]:
        server = Server(BINARIES)
        self.addCleanup(server.__exit__)
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = rt.DataLoader(make_data(), batch_size=BATCH)
        job = rt.join(model, optimizer, loader, optimizer_on="server", epochs=1, server=server.address, **settings)
        self.addCleanup(job.leave)
        return server, model, optimizer, loader, job

    def test_accumulation_is_pushed_at_step(self) -> None:
        server, model, optimizer, loader, job = self.begin()
        for number, (x, y) in enumerate(loader):
            functional.cross_entropy(model(x), y).backward()
            if number % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        self.assertFalse(job.overlaps)
        self.assertEqual(int(server.status()["samples_completed"]), SAMPLES)

    def test_a_batch_without_a_step_ends_in_good_order(self) -> None:
        server, model, optimizer, loader, job = self.begin(overlap=True)
        for number, (x, y) in enumerate(loader):
            functional.cross_entropy(model(x), y).backward()
            if number != 23:  # The last of the pass.
                optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(server.phase(), "PHASE_FINISHED")
        self.assertEqual(int(server.status()["samples_completed"]), SAMPLES)

    def test_a_script_that_ends_within_backward_leaves_the_job_to_others(self) -> None:
        server, model, optimizer, loader, job = self.begin(overlap=True, job_settings={"split_samples": BATCH})
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            break
        job.leave()
        self.assertNotEqual(server.phase(), "PHASE_FINISHED")
        again = rt.DataLoader(make_data(), batch_size=BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        rt.join(model, optimizer, again, optimizer_on="server", epochs=1, server=server.address, job_settings={"split_samples": BATCH})
        for x, y in again:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(server.phase(), "PHASE_FINISHED")
        self.assertEqual(int(server.status()["samples_completed"]), SAMPLES)


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
