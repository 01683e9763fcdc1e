"""What scripts do besides the plain loop, and what they do wrong: one short job each, in this process.
Environment: RECON_TEST_BIN, the programs."""

import pickle
import unittest
from typing import Any

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon
import recon.torch as rt
from jobs import wait_for
from torch_small import BATCH, DATA, SAMPLES, Case, accuracy, loss_of, make_model, sgd
from torch import nn
from torch.nn import functional


class Loops(Case):
    def test_gradients_are_clipped_before_they_are_pushed(self) -> None:
        model = make_model()
        before = [p.detach().clone() for p in model.parameters()]
        self.train(model, sgd(model), epochs=1,
                   before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
        moved = sum(float((p.detach() - old).square().sum()) for p, old in zip(model.parameters(), before)) ** 0.5
        self.assertGreater(moved, 0)
        self.assertLess(moved, 0.1 * 1e-3 * (SAMPLES // BATCH) * 1.01)

    def test_a_step_that_a_scaler_skips_is_not_pushed_and_its_samples_count(self) -> None:
        model = make_model()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=256.0)
        loader, job = self.join(model, optimizer)
        numbers, last = 0, None
        for number in range(2):
            for batch in loader:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, batch)
                scaler.scale(loss).backward()
                if numbers in (3, SAMPLES // BATCH - 1, 2 * SAMPLES // BATCH - 1):  # The last of a pass, too.
                    model[0].weight.grad[0, 0] = float("inf")
                scaler.step(optimizer)
                scaler.update()
                if number == 0:
                    optimizer.zero_grad()
                else:
                    last = [p.grad for p in model.parameters()]
                    optimizer.zero_grad(set_to_none=False)
                numbers += 1
        self.assertEqual(scaler.get_scale(), 256.0 / 8)
        self.assertEqual(numbers, 2 * SAMPLES // BATCH)
        self.assertIsNotNone(last)
        self.assertGreater(accuracy(model), 0.9)
        self.expect_done()

    def test_what_is_accumulated_at_the_end_of_a_pass_goes_with_the_next_step(self) -> None:
        # 34 batches a pass: the last 2 of each are of no step of their own, and a scale is on them.
        for policy in ("bsp", "asp"):
            with self.subTest(policy=policy):
                self.setUp()
                model = make_model()
                optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
                loader, _ = self.join(model, optimizer, rt.DataLoader(DATA, batch_size=30),
                                      job_settings={"sync": policy})
                for _ in range(2):
                    for number, batch in enumerate(loader):
                        scaler.scale(loss_of(model, batch) / 4).backward()
                        if (number + 1) % 4 == 0:
                            scaler.step(optimizer)
                            scaler.update()
                            optimizer.zero_grad()
                self.assertLess(max(float(p.detach().abs().max()) for p in model.parameters()), 3)
                self.assertGreater(accuracy(model), 0.9)
                self.expect_done()

    def test_batches_that_the_script_passes_over_are_done(self) -> None:
        model = make_model()
        optimizer = sgd(model)
        loader, job = self.join(model, optimizer)
        for _ in range(2):
            for number, batch in enumerate(loader):
                if number % 2:
                    continue
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        self.expect_done()

    def test_a_closure_is_called_once_by_ours_and_as_often_as_it_likes_by_one_that_steps_here(self) -> None:
        for make, calls in ((sgd, 1), (lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4), 4)):
            with self.subTest(calls=calls):
                self.setUp()
                model = make_model()
                optimizer, called = make(model), 0
                loader, _ = self.join(model, optimizer)
                for _ in range(2):
                    for batch in loader:
                        def closure() -> torch.Tensor:
                            nonlocal called
                            called += 1
                            optimizer.zero_grad()
                            loss = loss_of(model, batch)
                            loss.backward()
                            return loss
                        self.assertTrue(float(optimizer.step(closure).detach()) >= 0)
                self.assertEqual(called > 2 * SAMPLES // BATCH, calls > 1)
                self.assertGreater(accuracy(model), 0.9)

    def test_a_loop_that_is_left_goes_on_where_it_was(self) -> None:
        model = make_model()
        optimizer = sgd(model)
        loader, job = self.join(model, optimizer)
        seen: list[int] = []
        for _ in range(3):
            for number, batch in enumerate(loader):
                if number == 5:
                    break
                seen += job.indices()
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertEqual(len(seen), len(set(seen)))
        job.leave()
        self.assertEqual(self.server.phase(), "PHASE_RUNNING")

    def test_schedulers_of_any_kind_keep_to_the_jobs_progress(self) -> None:
        kinds = torch.optim.lr_scheduler
        for make in (lambda o: kinds.OneCycleLR(o, 0.1, total_steps=40, cycle_momentum=False), lambda o: kinds.ChainedScheduler(
                [kinds.CosineAnnealingLR(o, 40), kinds.LinearLR(o, total_iters=5)])):
            self.setUp()
            model = make_model()
            optimizer = sgd(model)
            scheduler = make(optimizer)
            loader, _ = self.join(model, optimizer, scheduler=scheduler)
            pickle.dumps(scheduler.state_dict())  # As checkpoints do.
            for _ in range(2):
                for batch in loader:
                    loss_of(model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
            self.assertLess(optimizer.param_groups[0]["lr"], 1e-3)

    def test_policies_codecs_and_servers_may_change_in_the_middle(self) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loader, job = self.join(model, optimizer, epochs=5, codec="int8")
        number = 0
        for _ in range(5):
            for batch in loader:
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                number += 1
                policy = {15: "asp", 35: "local:8", 70: "bsp"}.get(number)
                if policy is not None:
                    self.server.reconctl("policy", "set", "--server", self.server.address, "--sync", policy)
                if number == 55:
                    self.server.kill()
                    self.server.start()
        self.assertGreater(accuracy(model), 0.9)
        self.expect_done(5)


class Models(Case):
    def test_a_frozen_batchnorm_stays_frozen_through_an_evaluation(self) -> None:
        model = make_model(nn.BatchNorm1d(32), nn.Dropout(0.1))
        model[2].eval()
        self.train(model, sgd(model), evaluate=lambda m: {"accuracy": accuracy(m)})
        self.assertTrue(model.training and model[3].training)
        self.assertFalse(model[2].training)
        self.assertTrue(torch.equal(model[2].running_mean, torch.zeros(32)))
        self.assertGreater(self.server.status()["evaluations"][-1]["accuracy"], 0.9)

    def test_odd_tensors_train_and_come_out_of_an_export(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = make_model()
                self.scale, self.empty = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.empty(0, 3))
                self.unused, self.frozen = nn.Parameter(torch.ones(3)), nn.Linear(4, 4).requires_grad_(False)
                self.sparse, self.embedding = nn.Embedding(4, 4, sparse=True), nn.Embedding(4, 4)
                self.head = nn.Linear(4, 4, bias=False)
                self.head.weight = self.embedding.weight
                self.register_buffer("mask", torch.full((4,), float("-inf")))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                index = torch.zeros(len(x), dtype=torch.long)
                return (self.body(x) * self.scale + self.sparse(index) + 0.1 * self.head(self.embedding(index))
                        + self.frozen(torch.ones(4)))

        model = Odd()
        self.train(model, sgd(model))
        self.assertGreater(accuracy(model), 0.9)
        self.assertNotEqual(float(model.scale.detach()), 1.0)
        self.assertTrue(torch.equal(model.unused.detach(), torch.ones(3)))
        self.server.drain()
        path = str(self.server.root / "model.safetensors")
        self.server.reconctl("snapshot", "export", str(self.server.data / "snapshots"), "--output", path)
        exported = load_file(path)
        self.assertEqual(set(model.state_dict()) - set(exported), {"empty", "frozen.weight", "frozen.bias", "mask"})
        for name, tensor in exported.items():
            self.assertLess(float((tensor - model.state_dict()[name]).abs().max()), 1e-2, name)

    def test_of_a_large_table_only_rows_with_a_gradient_are_sent(self) -> None:
        class Table(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows, self.head = nn.Embedding(200_000, 16, sparse=True), nn.Linear(32, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                index = (x[:, :1].abs() * 50_000).long().clamp(max=199_999)  # A row of its own for each sample, about.
                return self.head(torch.cat([x, self.rows(index).squeeze(1)], 1))

        def pushed(work: dict[str, Any]) -> float:
            """Bytes of a push, as a heartbeat has told while the job ran."""
            if not work:
                told = self.server.status()["members"][0]["progress"].get("step_work", {})
                work.update(told if int(told.get("pushes", 0)) > 0 else {})
            return int(work["push_bytes"]) / int(work["pushes"]) if work else 0.0

        table_bytes = 200_000 * 16 * 4
        for momentum in (0.0, 0.9):  # With momentum each step moves all that has ever had a gradient.
            with self.subTest(momentum=momentum):
                self.setUp()
                torch.manual_seed(1)
                model, plain = Table(), Table()
                plain.load_state_dict(model.state_dict())
                optimizer, its_own = (torch.optim.SGD(m.parameters(), lr=0.5, momentum=momentum) for m in (model, plain))
                loader, _ = self.join(model, optimizer, epochs=1, codec="fp32")
                batches, work = 0, {}
                for batch in loader:
                    for m, o in ((model, optimizer), (plain, its_own)):
                        loss_of(m, batch).backward()
                        o.step()
                        o.zero_grad()
                    batches += 1
                    if batches == 10:
                        wait_for("a heartbeat that tells of pushes", lambda: pushed(work) > 0)
                self.assertEqual(batches, SAMPLES // BATCH)
                if momentum == 0:
                    self.assertLess(pushed(work), 0.01 * table_bytes)
                else:
                    self.assertGreater(pushed(work), table_bytes)
                self.expect_done()
                for ours, theirs in zip(model.parameters(), plain.parameters()):
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # Sums of many samples in a row.

    def test_convolutions_in_channels_last_and_a_batchnorm_without_momentum(self) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None),
                              nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 4))
        self.train(model.to(memory_format=torch.channels_last), sgd(model))
        self.assertEqual(int(model[2].num_batches_tracked), 2 * SAMPLES // BATCH)
        self.assertGreater(accuracy(model.eval()), 0.9)

    def test_a_model_in_bfloat16_that_is_compiled_and_checkpointed(self) -> None:
        model = make_model().bfloat16()
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader, _ = self.join(model, optimizer)
        for _ in range(2):
            for x, y in loader:
                out = torch.utils.checkpoint.checkpoint(compiled, x.bfloat16(), use_reentrant=False)
                functional.cross_entropy(out, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertGreater(accuracy(model.float()), 0.9)


class Broken(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == 777:
            raise KeyError("sample 777 is broken")
        return DATA[index]


class Data(Case):
    def test_a_sampler_that_draws_gives_each_pass_one_order(self) -> None:
        for sampler in (torch.utils.data.RandomSampler(DATA), torch.utils.data.SubsetRandomSampler(range(SAMPLES), (
                torch.Generator()))):
            self.setUp()
            model = make_model()
            optimizer = sgd(model)
            loader, job = self.join(model, optimizer, rt.DataLoader(DATA, batch_size=BATCH, sampler=sampler))
            other = torch.rand(1)
            orders = [list(loader.order(data_epoch)) for data_epoch in (0, 1, 0)]
            self.assertFalse(torch.equal(other, torch.rand(1)))
            self.assertEqual(orders[0], orders[2])
            self.assertNotEqual(orders[0], orders[1])
            self.assertEqual(sorted(orders[0]), list(range(SAMPLES)))
            job.leave()

    def test_a_sampler_is_told_what_is_wrong_with_its_indices(self) -> None:
        class Shrinks(list):
            def __iter__(self) -> Any:
                return iter(range(5))

        for indices, text in ((Shrinks(range(100)), r"the sampler gave 5 indices in pass 0, its len\(\) was 100"), (
                [5000] * SAMPLES, "the sampler gave indices from 5000 to 5000 in pass 0")):
            self.setUp()
            model = make_model()
            with self.assertRaisesRegex(ValueError, text):
                self.train(model, sgd(model), rt.DataLoader(DATA, batch_size=BATCH, sampler=indices))

    def test_other_data_of_the_same_size_is_refused(self) -> None:
        x, y = DATA.tensors
        changed = y.clone()
        changed[: SAMPLES // 2] = 0
        model = make_model()
        self.join(model, sgd(model))
        for name, data in {"labels": torch.utils.data.TensorDataset(x, changed),
                           "rows": torch.utils.data.TensorDataset(x.flip(0), y),
                           "a subset": torch.utils.data.Subset(DATA, list(range(SAMPLES - 1, -1, -1)))}.items():
            with self.subTest(name), self.assertRaisesRegex(recon.Refused, "training data is other data: its fingerprint is"):
                self.join(model, sgd(model), rt.DataLoader(data, batch_size=BATCH))
        same = torch.utils.data.TensorDataset(x.clone(), y.clone())
        self.join(model, sgd(model), rt.DataLoader(same, batch_size=BATCH))
        # One that cannot be told is taken, as it is with the script's word.
        self.join(model, sgd(model), rt.DataLoader([DATA[index] for index in range(SAMPLES)], batch_size=BATCH))
        with self.assertRaisesRegex(recon.Refused, "its fingerprint is mine"):
            self.join(model, sgd(model), rt.DataLoader(DATA, batch_size=BATCH, fingerprint="mine"))

    def test_a_sample_that_raises_ends_the_loop_with_its_error(self) -> None:
        for processes in (0, 2):
            self.setUp()
            model = make_model()
            with self.assertRaisesRegex(KeyError, "sample 777 is broken"):
                self.train(model, sgd(model), rt.DataLoader(Broken(), batch_size=BATCH, num_workers=processes))

    def test_processes_that_persist_load_all_passes(self) -> None:
        model = make_model()
        self.train(model, sgd(model), rt.DataLoader(DATA, batch_size=BATCH, num_workers=2, persistent_workers=True,
                                                    pin_memory=False))
        self.expect_done()


class Mistakes(Case):
    def expect(self, kind: type, text: str, model: nn.Module, optimizer: Any = None, **settings: Any) -> None:
        with self.subTest(text=text), self.assertRaisesRegex(kind, text):
            self.train(model, optimizer or sgd(model), **settings)

    def test_a_model_that_cannot_be_trained_is_told_why(self) -> None:
        with torch.device("meta"):
            self.expect(TypeError, "parameter weight has no values yet", nn.Linear(16, 4))
        self.expect(TypeError, "parameter weight has no values yet", nn.LazyLinear(4))
        model = make_model()
        model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.expect(TypeError, "parameter phase is torch.complex64", model)
        self.expect(TypeError, "no parameter of Sequential requires a gradient", make_model().requires_grad_(False))
        model = make_model()
        self.expect(TypeError, "0.weight, 0.bias of Sequential require a gradient, and the optimizer has only 2 of 4 parameters", model,
                    sgd(model[2]))
        model = make_model()
        model[0].weight.data[0, :2] = float("nan")
        self.expect(FloatingPointError, "begins with 0.weight, of whose 512 values 2 are infinite", model)

    def test_a_parameter_that_is_unfrozen_later_is_not_lost_in_silence(self) -> None:
        model = make_model()
        model[2].requires_grad_(False)
        optimizer = sgd(model[0])
        loader, job = self.join(model, optimizer)
        model[2].requires_grad_(True)
        optimizer.add_param_group({"params": model[2].parameters()})
        loss_of(model, next(iter(loader))).backward()
        with self.assertRaisesRegex(TypeError, r"shape \[4, 32\] in the optimizer's group 1 has a gradient"):
            optimizer.step()

    def test_a_loader_that_cannot_be_shared_is_told_why(self) -> None:
        model = make_model()
        self.expect(TypeError, "torch.utils.data.dataloader.DataLoader as loader, expected a recon.torch.DataLoader",
                    model, loader=torch.utils.data.DataLoader(DATA))
        for kind, text, arguments in ((ValueError, "Subset, has no samples", (torch.utils.data.Subset(DATA, []),)),
                                      (TypeError, "object has no __len__", (object(),))):
            with self.assertRaisesRegex(kind, text):
                rt.DataLoader(*arguments)
        with self.assertRaisesRegex(TypeError, "no in_order=False"):
            rt.DataLoader(DATA, num_workers=2, in_order=False)

    def test_an_evaluation_that_fails_says_what_it_returned(self) -> None:
        def broken(_: nn.Module) -> dict[str, float]:
            raise LookupError("no such metric")

        for kind, text, evaluate in (
                (TypeError, "evaluate returned float, expected a dict", lambda _: 0.5),
                (TypeError, "returned None as accuracy, expected a number or", lambda _: {"accuracy": None}),
                (TypeError, r"returned \(1, 2, 3\) as loss, expected a number or", lambda _: {"loss": (1, 2, 3)}),
                (recon.Refused, "loss is nan over 1", lambda _: {"loss": float("nan")}),
                (LookupError, "no such metric", broken)):
            self.setUp()
            self.expect(kind, text, make_model(), evaluate=evaluate)

    def test_a_policy_that_an_optimizer_of_the_workers_cannot_keep_ends_it(self) -> None:
        model = make_model()

        def change() -> None:
            if not changed:
                changed.append(True)
                self.server.reconctl("policy", "set", "--server", self.server.address, "--sync", "bsp")
        changed: list[bool] = []
        self.expect(recon.ReconError, "the job's policy has no local steps", model,
                    torch.optim.RMSprop(model.parameters(), lr=1e-3), epochs=20, before_step=change)
        self.assertTrue(changed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
