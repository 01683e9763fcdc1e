"""Jobs whose workers have the optimizer: a script means in a job what it means in plain PyTorch. Environment:
RECON_TEST_BIN, the programs."""

import copy
import json
import os
import unittest
from collections.abc import Callable
from typing import Any

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon
import recon.torch as rt
from jobs import Script, Server, wait_for
from torch_small import BATCH, BINARIES, DATA, SAMPLES, Case, accuracy, loss_of, make_model
from torch import nn

EXACT = {"codec": "fp32"}
Body = Callable[[nn.Module, list[torch.optim.Optimizer], Any, int], None]


def adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def step_all(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, _: int) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss_of(model, batch).backward()
    for optimizer in optimizers:
        optimizer.step()


class Meanings(Case):
    """One worker, beside the same loop in plain PyTorch on the same batches."""

    def twin(self, make_optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]], body: Body = step_all,
             make: Callable[[], nn.Module] = make_model, epochs: int = 2,
             scheduler: Callable[[torch.optim.Optimizer], Any] | None = None) -> tuple[nn.Module, nn.Module]:
        ours, plain = make(), make()
        optimizers, others = make_optimizers(ours), make_optimizers(plain)
        schedulers = [] if scheduler is None else [scheduler(optimizers[0]), scheduler(others[0])]
        loader = rt.DataLoader(DATA, batch_size=BATCH)
        job = rt.join(ours, optimizers, loader, epochs=epochs, optimizer_on="workers",
                      scheduler=schedulers[0] if schedulers else None, **EXACT)
        self.addCleanup(job.leave)
        number = 0
        for _ in range(epochs):
            for batch in loader:
                body(ours, optimizers, batch, number)
                body(plain, others, batch, number)
                for one in schedulers:
                    one.step()
                number += 1
        self.assertEqual(number, epochs * len(loader))
        self.expect_done()
        return ours, plain

    def check_equal(self, ours: nn.Module, plain: nn.Module) -> None:
        for (name, one), (_, other) in zip(ours.state_dict().items(), plain.state_dict().items()):
            self.assertLessEqual(float((one.double() - other.double()).abs().max()),
                                 1e-6 * max(1.0, float(other.double().abs().max())), name)

    def test_plain_steps_are_those_of_plain_pytorch(self) -> None:
        self.check_equal(*self.twin(adamw))

    def test_clipping_clamping_and_an_average_of_the_model(self) -> None:
        averages: dict[int, nn.Module] = {}

        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            optimizers[0].zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizers[0].step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.4, 0.4)
                average = averages.setdefault(id(model), copy.deepcopy(model))
                for one, other in zip(average.parameters(), model.parameters()):
                    one.lerp_(other, 0.1)
        self.check_equal(*self.twin(adamw, body))
        self.check_equal(*averages.values())

    def test_schedules_of_momentum_and_of_decay(self) -> None:
        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            optimizers[0].param_groups[0]["weight_decay"] = 0.1 if number > 9 else 0.0
            step_all(model, optimizers, batch, number)
        self.check_equal(*self.twin(
            lambda model: [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)], body,
            scheduler=lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.2, total_steps=41)))

    def test_two_optimizers_and_one_without_an_equal_at_the_server(self) -> None:
        def make(model: nn.Module) -> list[torch.optim.Optimizer]:
            return [torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.02),
                    torch.optim.AdamW([p for p in model.parameters() if p.dim() != 2], lr=1e-2)]
        self.check_equal(*self.twin(make))

    def test_layers_that_are_frozen_later_or_left_out_and_batch_norm(self) -> None:
        class Depth(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(3)
                self.first, self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
                self.norm = nn.BatchNorm1d(16)
                self.calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.calls += 1
                hidden = torch.relu(self.norm(self.first(x)))
                return self.last(hidden if self.calls % 3 == 0 else hidden + torch.relu(self.middle(hidden)))

        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            if number == 20:
                model.first.requires_grad_(False)
            step_all(model, optimizers, batch, number)
        self.check_equal(*self.twin(adamw, body, make=Depth))

    def test_accumulation_over_several_batches(self) -> None:
        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            (loss_of(model, batch) / 4).backward()
            if number % 4 == 3:
                optimizers[0].step()
                optimizers[0].zero_grad()
        self.check_equal(*self.twin(adamw, body))

    def test_a_scaler_that_skips_steps(self) -> None:
        scalers: dict[int, torch.amp.GradScaler] = {}

        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            scaler = scalers.setdefault(id(model), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5))
            optimizers[0].zero_grad()
            loss = loss_of(model, batch) * (float("inf") if number in (3, 17) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizers[0])
            scaler.update()
        self.check_equal(*self.twin(adamw, body))

    def test_two_models_that_train_against_each_other(self) -> None:
        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.maker, self.judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

        def make(model: nn.Module) -> list[torch.optim.Optimizer]:
            return [torch.optim.Adam(model.judge.parameters(), lr=1e-2), torch.optim.Adam(model.maker.parameters(), lr=1e-2)]

        def body(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any, number: int) -> None:
            bce = nn.functional.binary_cross_entropy_with_logits
            noise = torch.randn(len(batch[0]), 8, generator=torch.Generator().manual_seed(number))
            one, zero = torch.ones(len(noise), 1), torch.zeros(len(noise), 1)
            optimizers[0].zero_grad()
            (bce(model.judge(batch[0]), one) + bce(model.judge(model.maker(noise).detach()), zero)).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            bce(model.judge(model.maker(noise)), one).backward()
            optimizers[1].step()
        self.check_equal(*self.twin(make, body, make=Both))

    def test_an_export_has_the_model_and_with_its_state_what_belongs_to_the_optimizers(self) -> None:
        def make() -> nn.Module:
            return make_model(nn.BatchNorm1d(32))
        ours, _ = self.twin(adamw, make=make)
        for state in (False, True):
            path = self.server.root / "model.safetensors"
            self.server.reconctl("snapshot", "export", str(self.server.data / "snapshots"), "--output", str(path),
                                 *(["--state"] if state else []))
            tensors = load_file(path)
            if state:
                self.assertTrue(any(name.startswith("state/optimizer0/") for name in tensors))
                continue
            make().load_state_dict(tensors, strict=True)
            for name, value in ours.state_dict().items():
                self.assertTrue(torch.equal(value, tensors[name]), name)

    def test_an_optimizer_goes_on_without_a_server(self) -> None:
        model, plain = make_model(), make_model()
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), torch.optim.Adam(model[2].parameters(), lr=1e-2)]
        loader = rt.DataLoader(DATA, batch_size=BATCH)
        rt.join(model, optimizers, loader, epochs=2, **EXACT)
        for _ in range(2):
            for batch in loader:
                step_all(model, optimizers, batch, 0)
        self.expect_done()
        os.environ["RECON_BIN"] = BINARIES
        others = [torch.optim.SGD(plain[0].parameters(), lr=0.5, momentum=0.9), torch.optim.Adam(plain[2].parameters(), lr=0.5)]
        for number, (ours, other) in enumerate(zip(optimizers, others)):
            rt.load_optimizer(other, plain, self.server.data / "snapshots", number=number)
            self.assertEqual(other.param_groups[0]["lr"], ours.param_groups[0]["lr"])
            for state, its in zip(ours.state.values(), other.state.values()):
                self.assertEqual(set(state), set(its))
                for name, value in state.items():
                    self.assertTrue(torch.equal(torch.as_tensor(value), torch.as_tensor(its[name])), name)
        with self.assertRaisesRegex(ValueError, "no optimizer2"):
            rt.load_optimizer(others[0], plain, self.server.data / "snapshots", number=2)

    def test_the_model_is_evaluated_as_it_is_after_each_pass(self) -> None:
        model = make_model()
        optimizers = adamw(model)
        loader = rt.DataLoader(DATA, batch_size=BATCH)
        seen: list[float] = []

        def evaluate(evaluated: nn.Module) -> dict[str, Any]:
            self.assertFalse(evaluated.training)
            seen.append(accuracy(evaluated))
            return {"accuracy": (seen[-1], 1)}
        rt.join(model, optimizers, loader, epochs=2, optimizer_on="workers", evaluate=evaluate, **EXACT)
        after = []
        for _ in range(2):
            for batch in loader:
                step_all(model, optimizers, batch, 0)
            after.append(accuracy(model))
        self.expect_done()
        self.assertEqual(seen, after)
        self.assertTrue(model.training)


class Workers(unittest.TestCase):
    """Of a job with several workers, as processes of their own."""

    hidden = 32

    def setUp(self) -> None:
        self.server = self.serve()
        self.out = self.server.root / "out"
        self.out.mkdir()

    def serve(self, *flags: str) -> Server:
        server = Server(BINARIES, *flags)
        self.addCleanup(server.__exit__)
        return server

    def script(self, name: str, *arguments: str) -> Script:
        return Script(self.server, name, "--out", str(self.out), "--hidden", str(self.hidden), *arguments,
                      script="workers_step_script.py")

    def records(self) -> dict[int, list[dict[str, Any]]]:
        """What was done in each step, by whomever."""
        steps: dict[int, list[dict[str, Any]]] = {}
        for path in self.out.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                steps.setdefault(entry["step"], []).append(entry)
        return steps

    def results(self, *names: str) -> list[dict[str, Any]]:
        return [torch.load(self.out / f"{name}.pt", weights_only=True) for name in names]

    def check_same(self, results: list[dict[str, Any]]) -> None:
        for other in results[1:]:
            self.assertEqual(results[0]["step"], other["step"])
            for part in ("model", "average"):
                for name, value in results[0][part].items():
                    self.assertTrue(torch.equal(value, other[part][name]), f"{part} {name}")
            self.assertEqual(results[0]["rate"], other["rate"])

    def check_samples(self, epochs: int) -> None:
        """Each split of each pass was completed once."""
        splits = [(one["data_epoch"], one["split"]) for one in self.server.completions() if one["kind"] == "LEASE_TRAIN"]
        self.assertEqual(len(splits), len(set(splits)))
        self.assertEqual(len(splits), epochs * SAMPLES // (2 * BATCH))

    def redone(self) -> dict[str, Any]:
        """The same steps done again in one process, on the union of the batches."""
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self._redone()
        finally:
            torch.set_default_dtype(dtype)

    def check_redone(self, result: dict[str, Any]) -> None:
        once = self.redone()
        for part in ("model", "average"):
            for name, value in once[part].items():
                # Gradients travel in FP32.
                self.assertLess(float((value - result[part][name]).abs().max()), 1e-5, f"{part} {name}")

    def _redone(self) -> dict[str, Any]:
        data = torch.utils.data.TensorDataset(DATA.tensors[0].double(), DATA.tensors[1])
        model = make_model(hidden=self.hidden)
        momentum = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.02, momentum=0.9)
        adam = torch.optim.AdamW([p for p in model.parameters() if p.dim() != 2], lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=30)
        average = copy.deepcopy(model)
        for _, entries in sorted(self.records().items()):
            indices = [index for entry in entries for index in entry["indices"]]
            momentum.zero_grad()
            adam.zero_grad()
            loss_of(model, data[torch.tensor(indices)]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            momentum.step()
            adam.step()
            # It goes by the job's batches, at all workers alike.
            self.assertEqual(len({entry["scheduled"] for entry in entries}), 1)
            while schedule.last_epoch < entries[0]["scheduled"]:
                schedule.step()
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters()):
                    other.clamp_(-0.6, 0.6)
                    one.lerp_(other, 0.1)
        return {"model": model.state_dict(), "average": average.state_dict(), "rate": schedule.get_last_lr()}


class OfTheServer(Case):
    flags = ("--optimizer", "momentum")

    def test_a_server_that_has_the_optimizer_says_how_to_join_it(self) -> None:
        model = make_model()
        with self.assertRaisesRegex(recon.Refused, "--optimizer mean instead of momentum.*optimizer_on='server'"):
            rt.join(model, adamw(model), rt.DataLoader(DATA, batch_size=BATCH))


class Several(Workers):
    def test_three_workers_make_the_steps_of_one_process_on_their_batches(self) -> None:
        first = self.script("first")
        wait_for("the job's state", lambda: self.server.phase() == "PHASE_RUNNING")
        others = [self.script(name) for name in ("second", "third")]
        for one in (first, *others):
            self.assertEqual(one.wait(), 0, one.log())
        results = self.results("first", "second", "third")
        self.check_same(results)
        self.check_samples(2)
        self.check_redone(results[0])
        steps = self.records()
        self.assertEqual(sorted(steps), list(range(len(steps))))

    def test_workers_that_are_killed_are_replaced_and_all_end_with_one_model(self) -> None:
        epochs = 4
        scripts = {name: self.script(name, "--epochs", str(epochs), "--pause", "0.02") for name in ("first", "second", "third")}
        wait_for("steps", lambda: len(self.records()) > 10)
        for victim in ("second", "first"):
            scripts[victim].kill()
            before = len(self.records())
            wait_for("steps without it", lambda: len(self.records()) > before + 3)
            scripts[victim] = self.script(victim, "--epochs", str(epochs), "--pause", "0.02")
            before = len(self.records())
            wait_for("steps", lambda: len(self.records()) > before + 3)
        for one in scripts.values():
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results(*scripts))
        self.check_samples(epochs)

    def test_the_server_is_killed_and_nothing_is_lost(self) -> None:
        scripts = [self.script(name, "--pause", "0.02") for name in ("first", "second")]
        wait_for("steps", lambda: len(self.records()) > 8)
        self.server.kill()
        self.server.start()
        for one in scripts:
            self.assertEqual(one.wait(), 0, one.log())
        results = self.results("first", "second")
        self.check_same(results)
        self.check_samples(2)

    def test_where_all_workers_die_training_goes_on_from_the_state_that_the_server_has(self) -> None:
        scripts = [self.script(name, "--pause", "0.02") for name in ("first", "second")]
        wait_for("a job", lambda: self.server.phase() == "PHASE_RUNNING")
        wait_for("completed splits", lambda: len(self.server.completions()) >= 4)
        for one in scripts:
            one.kill()
        self.server.kill()
        self.server.start()
        again = [self.script(name) for name in ("third", "fourth")]
        for one in again:
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results("third", "fourth"))
        self.check_samples(2)


class Refusals(Case):
    def test_what_does_not_go_with_the_optimizer_on_workers_is_refused_by_name(self) -> None:
        model = make_model()
        for settings, named in (({"job_settings": {"sync": "asp"}}, "sync=asp"), ({"overlap": True}, "overlap=True"),
                                ({"also": {"average": 3}}, r"also\['average'\] is a int")):
            with self.subTest(named=named), self.assertRaisesRegex((TypeError, ValueError), named):
                rt.join(model, adamw(model), rt.DataLoader(DATA, batch_size=BATCH), optimizer_on="workers", **settings)
        with self.assertRaisesRegex(ValueError, "expected 'server' or 'workers'"):
            rt.join(model, adamw(model), rt.DataLoader(DATA, batch_size=BATCH), optimizer_on="nobody")


if __name__ == "__main__":
    unittest.main()
