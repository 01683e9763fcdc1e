"""Small trainings in the loops of other frameworks. A test of one that is absent is skipped, by its name.
Environment: RECON_TEST_BIN, the programs."""

import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
from jobs import Script, Server
from torch import nn
from torch.nn import functional

SAMPLES, BATCH, EPOCHS = 1000, 50, 3
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"


def absent(*packages: str) -> str:
    return ", ".join(package for package in packages if importlib.util.find_spec(package) is None)


class Classified(torch.utils.data.Dataset):
    """Points with labels, as a dict or as a pair."""

    def __init__(self, named: bool) -> None:
        generator = torch.Generator().manual_seed(5)
        centers = 2 * torch.randn(4, 16, generator=generator)
        self.y = torch.randint(0, 4, (SAMPLES,), generator=generator)
        self.x = centers[self.y] + torch.randn(SAMPLES, 16, generator=generator)
        self.named = named

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index], "labels": self.y[index]} if self.named else (self.x[index], self.y[index])


class Frameworks(unittest.TestCase):
    def run_workers(self, mode: str, script: str, workers: int) -> None:
        with Server(os.environ["RECON_TEST_BIN"], "--workers-min", str(workers)) as server:
            scripts = [Script(server, f"w{number}", *([mode] if mode else []), script=script)
                       for number in range(workers)]
            for one in scripts:
                self.assertEqual(one.wait(), 0, one.log())
            status = server.status()
            self.assertEqual(server.phase(), "PHASE_FINISHED")
            self.assertEqual(status["evaluations"][-1]["data_epochs"], EPOCHS)
            self.assertGreater(status["evaluations"][-1]["accuracy"], 0.9)

    @unittest.skipIf(absent("transformers", "accelerate"), f"absent: {absent('transformers', 'accelerate')}")
    def test_a_hugging_face_trainer_trains_in_a_job(self) -> None:
        for workers in (1, 2):
            self.run_workers("hf", "frameworks_test.py", workers)

    @unittest.skipIf(absent("transformers", "accelerate"), f"absent: {absent('transformers', 'accelerate')}")
    def test_a_hugging_face_trainer_is_equal_to_its_plain_run(self) -> None:
        with Server(os.environ["RECON_TEST_BIN"]) as server:
            script = Script(server, "w", "hf equal", script="frameworks_test.py")
            self.assertEqual(script.wait(), 0, script.log())

    @unittest.skipIf(absent("lightning"), f"absent: {absent('lightning')}")
    def test_a_lightning_trainer_trains_in_a_job(self) -> None:
        for workers in (1, 2):
            self.run_workers("lightning", "frameworks_test.py", workers)

    @unittest.skipIf(absent("lightning"), f"absent: {absent('lightning')}")
    def test_a_schedule_goes_by_lightnings_steps_where_batches_are_accumulated(self) -> None:
        with Server(os.environ["RECON_TEST_BIN"]) as server:
            script = Script(server, "w", "lightning accumulation", script="frameworks_test.py")
            self.assertEqual(script.wait(), 0, script.log())

    @unittest.skipIf(absent("lightning"), f"absent: {absent('lightning')}")
    def test_what_lightning_cannot_do_in_a_job_is_told_so(self) -> None:
        with Server(os.environ["RECON_TEST_BIN"]) as server:
            script = Script(server, "w", "lightning mistakes", script="frameworks_test.py")
            self.assertEqual(script.wait(), 0, script.log())

    @unittest.skipIf(absent("accelerate"), f"absent: {absent('accelerate')}")
    def test_accelerate_prepares_what_trains_in_a_job(self) -> None:
        for mode in ("accelerate", "accelerate with a scaler"):
            for workers in (1, 2):
                self.run_workers(mode, "frameworks_test.py", workers)

    def test_distributed_data_parallel_is_told_that_the_server_does_that(self) -> None:
        import recon.torch as rt

        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
        with self.assertRaisesRegex(TypeError, "was given a DistributedDataParallel"):
            rt.join(model, torch.optim.SGD(model.parameters(), lr=0.1), rt.DataLoader(Classified(named=False)))

    @unittest.skipIf(absent("jax"), f"absent: {absent('jax')}")
    def test_the_jax_example_learns(self) -> None:
        self.run_workers("", str(EXAMPLES / "jax_mlp.py"), 1)


class Named(nn.Module):
    """A model as Hugging Face's Trainer takes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(x)
        return {"loss": functional.cross_entropy(out, labels), "logits": out}


def hf_equal() -> None:
    """A Trainer in a job, and its plain one on the batches that it had: accumulation, clipping and a schedule."""
    import recon.torch.hf
    import transformers

    batches: list[Any] = []

    class Recorded(recon.torch.hf.Trainer):
        def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> torch.Tensor:
            batches.append(dict(inputs))
            return super().training_step(model, inputs, *args)

    class Replayed:
        dataset, batch_size, passes = None, BATCH, 0

        def __len__(self) -> int:
            return SAMPLES // BATCH

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(batches[(self.passes - 1) * len(self):self.passes * len(self)])

    class Plain(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Replayed()

    data = Classified(named=True)
    for accumulated, optimizer in ((1, "adamw_torch"), (3, "adamw_torch"), (4, "adafactor")):
        batches.clear()
        models = []
        for kind, options in ((Recorded, {"worker_settings": {"codec": "fp32"}}), (Plain, {})):
            arguments = transformers.TrainingArguments(
                output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, num_train_epochs=2, learning_rate=1e-2,
                lr_scheduler_type="cosine", gradient_accumulation_steps=accumulated, max_grad_norm=0.3, optim=optimizer,
                logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
            models.append(Named())
            with Server(os.environ["RECON_TEST_BIN"]) as server:
                os.environ["RECON_SERVER"] = server.address
                kind(model=models[-1], args=arguments, train_dataset=data, **options).train()
        for ours, plain in zip(*(model.parameters() for model in models)):
            torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


def train_hf() -> None:
    import recon.torch.hf
    import transformers

    def accuracy(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}

    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, learning_rate=1e-2, warmup_steps=3,
        gradient_accumulation_steps=2, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
    rates: list[float] = []

    class Rates(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, lr_scheduler: Any = None, **__: Any) -> None:
            rates.append(lr_scheduler.get_last_lr()[0])

    data = Classified(named=True)
    trainer = recon.torch.hf.Trainer(model=Named(), args=arguments, train_dataset=data, eval_dataset=data,
                                     compute_metrics=accuracy, callbacks=[Rates()])
    trainer.train()
    steps = EPOCHS * SAMPLES // BATCH // 2
    if trainer.state.global_step == steps:  # The only worker.
        plain = [1e-2 * min((n + 1) / 3, (steps - n - 1) / (steps - 3)) for n in range(steps)]
        assert all(abs(rate - expected) < 1e-9 for rate, expected in zip(rates, plain)), (rates, plain)
    assert rates[-1] < 1e-3, rates


def lightning_module(data: Any) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)

        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(data, batch_size=SAMPLES)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return functional.cross_entropy(self.body(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("accuracy", (self.body(batch[0]).argmax(1) == batch[1]).double().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Module()


def lightning_trainer(strategy: Any, **options: Any) -> Any:
    import lightning.pytorch as pl

    return pl.Trainer(strategy=strategy, accelerator="cpu", **{
        "max_epochs": EPOCHS, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, **options})


def train_lightning() -> None:
    import lightning.pytorch as pl
    import recon.torch.lightning as in_lightning

    data = Classified(named=False)
    module = lightning_module(data)

    def evaluate(model: nn.Module) -> dict[str, Any]:
        return {"accuracy": (float((model.body(data.x).argmax(1) == data.y).sum()), SAMPLES)}

    own: dict[int, torch.Tensor] = {}

    class Own(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            own[trainer.global_step] = pl_module.body[0].weight.detach().clone()

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = pl.callbacks.ModelCheckpoint(folder, filename="middle", every_n_train_steps=7)
        trainer = lightning_trainer(in_lightning.Strategy(evaluate=evaluate), enable_checkpointing=True,
                                    callbacks=[Own(), checkpoint])
        trainer.fit(module)
        assert trainer.callback_metrics["accuracy"] > 0.9, trainer.callback_metrics
        saved = torch.load(checkpoint.best_model_path, weights_only=False)
        lightning_module(data).load_state_dict(saved["state_dict"], strict=True)
        if trainer.global_step == EPOCHS * SAMPLES // BATCH:  # The only worker.
            # The job's, after the step, as the module has it then.
            assert saved["global_step"] == 56
            assert torch.equal(saved["state_dict"]["body.0.weight"], own[56])
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        last = torch.load(f"{folder}/last.ckpt", weights_only=False)["state_dict"]
        assert all(torch.equal(tensor, last[name]) for name, tensor in module.state_dict().items())


def lightning_accumulation() -> None:
    import recon.torch.lightning  # For "recon", by name.

    def rates_of(strategy: str) -> list[float]:
        module, rates = lightning_module(Classified(named=False)), []

        def configure() -> Any:
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.2, total_steps=int(module.trainer.estimated_stepping_batches), cycle_momentum=False)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        module.configure_optimizers = configure
        module.on_train_batch_end = lambda *_: rates.append(module.trainer.optimizers[0].param_groups[0]["lr"])
        lightning_trainer(strategy, accumulate_grad_batches=4, num_sanity_val_steps=0).fit(module)
        return rates

    plain, ours = rates_of("auto"), rates_of("recon")
    assert len(plain) == EPOCHS * SAMPLES // BATCH and ours == plain, (ours, plain)


def lightning_mistakes() -> None:
    import recon.torch.lightning  # For "recon", by name.

    loaders = torch.utils.data
    data = Classified(named=False)

    class Stream(loaders.IterableDataset):
        def __iter__(self) -> Any:
            return iter(data)

    case = unittest.TestCase()
    for kind, text, loader, options in (
            (ValueError, "max_epochs=-1: a job has a number of passes", None, {"max_epochs": -1}),
            (ValueError, "drop_last=True leaves no batch", loaders.DataLoader(data, SAMPLES + 1, drop_last=True), {}),
            (TypeError, "its files to recon.torch.leased", loaders.DataLoader(Stream()), {}),
            (TypeError, "of 2 replicas, which gives a part", loaders.DataLoader(data, sampler=loaders.DistributedSampler(
                data, num_replicas=2, rank=0)), {}),
            (TypeError, "the training loader is a builtins.list", [1, 2], {}),
            (ValueError, "a second training loader", [loaders.DataLoader(data), loaders.DataLoader(data)], {}),
            (ValueError, "the Trainer has 2 devices", None, {"devices": 2})):
        with case.subTest(text=text), case.assertRaisesRegex(kind, text):
            from lightning.pytorch.utilities import CombinedLoader
            if kind is ValueError and loader is not None:
                loader = CombinedLoader(loader)
            lightning_trainer("recon", num_sanity_val_steps=0, **options).fit(lightning_module(data), loader)


def train_accelerate(scaled: bool) -> None:
    import accelerate
    import recon
    import recon.torch as rt

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    if scaled:  # As mixed_precision="fp16" has one, on a GPU.
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    torch.manual_seed(3)
    data = Classified(named=False)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    loader = rt.DataLoader(data, batch_size=BATCH)

    def join() -> None:
        rt.join(model, optimizer, loader, epochs=EPOCHS, scheduler=scheduler, evaluate=lambda model: {
            "accuracy": (float((model(data.x).argmax(1) == data.y).sum()), SAMPLES)})

    case = unittest.TestCase()
    if scaled:
        with case.assertRaisesRegex(TypeError, "call join.. before accelerator.prepare"):
            rt.join(model, accelerate.optimizer.AcceleratedOptimizer(optimizer, scaler=accelerator.scaler), loader)
    prepared_first = not scaled and os.environ["RECON_NAME"] == "w0"
    if not prepared_first:
        join()
    theirs = torch.utils.data.DataLoader(data, batch_size=BATCH)
    model, optimizer, loader, scheduler, theirs = accelerator.prepare(model, optimizer, loader, scheduler, theirs)
    if prepared_first:
        with case.assertRaisesRegex(TypeError, "given a accelerate.data_loader.DataLoaderShard as loader, expected"):
            rt.join(model, optimizer, theirs)
        join()
    steps = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    steps += 1
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    if steps > 5:  # Of the job's 30; its warm-up is over.
        case.assertAlmostEqual(scheduler.get_last_lr()[0], 1e-2)
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    case.assertEqual(recon.torch.state_dict(model).keys(), model.state_dict().keys())


if __name__ == "__main__":
    if sys.argv[1:] == ["hf"]:
        train_hf()
    elif sys.argv[1:] == ["hf equal"]:
        hf_equal()
    elif sys.argv[1:] in (["accelerate"], ["accelerate with a scaler"]):
        train_accelerate(scaled="scaler" in sys.argv[1])
    elif sys.argv[1:] == ["lightning"]:
        train_lightning()
    elif sys.argv[1:] == ["lightning accumulation"]:
        lightning_accumulation()
    elif sys.argv[1:] == ["lightning mistakes"]:
        lightning_mistakes()
    else:
        unittest.main(verbosity=2)
