"""A strategy with which Lightning's own loop trains in a job.

    import recon.torch.lightning
    trainer = lightning.Trainer(max_epochs=10, strategy=recon.torch.lightning.Strategy())
    trainer.fit(module, train_loader)

The module has one training loader, of torch or of recon. What Lightning logs is this worker's. Where the server has the
optimizer (``optimizer_on="server"``) the module has one, which Lightning steps, and the checkpoints that Lightning writes have
the job's parameters and no optimizer state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

# Of the two packages that Lightning comes in, the one that the script has.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
else:
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl

import recon.torch as rt
from recon.torch._data import JobLoader

# What a loader of torch has, and ours takes.
_OPTIONS = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context",
            "prefetch_factor", "persistent_workers")


class Strategy(pl.strategies.SingleDeviceStrategy):
    """Makes the process a worker of a job when training begins; ``Trainer(strategy="recon")`` is one without arguments.

    Arguments, beside those of `recon.torch.join`, are a strategy's: ``accelerator``, ``precision_plugin``,
    ``checkpoint_io``. The passes are the Trainer's ``max_epochs``. Schedulers that Lightning steps after each batch keep
    to the job's progress.

    The training loader that Lightning is given, by whomever, is replaced: its samples are shared by all workers. Loaders
    for validation stay, and each worker validates all of it, with the job's parameters as they are then;
    ``limit_val_batches=0`` and ``evaluate`` let one worker do it.
    """

    strategy_name = "recon"

    def __init__(self, *, evaluate: Callable[..., dict[str, Any]] | None = None,
                 job_settings: dict[str, Any] | None = None, accelerator: Any = None, checkpoint_io: Any = None,
                 precision_plugin: Any = None, **settings: Any) -> None:
        super().__init__(accelerator=accelerator, checkpoint_io=checkpoint_io, precision_plugin=precision_plugin)
        self.job: rt.Job | None = None
        self._loader: JobLoader | None = None
        if "group" in settings:
            raise TypeError("recon's strategy takes no group: each of Lightning's processes is a worker")
        self._on_workers = rt.steps_on_workers(settings.pop("optimizer_on", None), job_settings or {})
        self._evaluate, self._job_settings, self._settings = evaluate, job_settings or {}, settings

    @property
    def parallel_devices(self) -> list[torch.device]:
        """What the Trainer has found; it sets them."""
        return []

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        if devices and len(devices) > 1:
            raise ValueError(f"the Trainer has {len(devices)} devices: each worker of a job is one process with one device. "
                             "Give it devices=1, and start one process for each with `recon run`")
        if devices:
            self._root_device = devices[0]

    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        if not any(isinstance(callback, _Passes) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, _Passes(self))

    def process_dataloader(self, dataloader: object) -> object:
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self._loader is not None:
            raise ValueError("a second training loader: a job shares one, for as long as it lasts (no "
                             "reload_dataloaders_every_n_epochs, no second fit() of a Trainer)")
        self._loader = dataloader if isinstance(dataloader, JobLoader) else _of_torch(dataloader)
        self._loader.skips_done_passes = True  # Lightning's loop ends after a pass without a batch.
        return self._loader

    def ends_pass(self) -> bool:
        """After a batch: whether it was this worker's last of the pass."""
        return self._loader is not None and self._loader.ends_pass()

    def between_batches(self) -> bool:
        """Whether this is a job's worker, and no gradient is on its way."""
        return self.job is not None and not self.job._left and not self.job._unstepped

    def on_train_start(self) -> None:
        super().on_train_start()
        module = self.lightning_module
        trainer = module.trainer
        if not self._on_workers and (len(self.optimizers) != 1 or not module.automatic_optimization):
            raise ValueError(f"the module has {len(self.optimizers)} optimizers and automatic_optimization="
                             f"{module.automatic_optimization}: expected one, that Lightning steps")
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise ValueError(f"the Trainer has max_epochs={trainer.max_epochs}: a job has a number of passes")
        on_workers: dict[str, Any] = {"optimizer_on": "server"}
        if self._on_workers:
            also = {**self._settings.pop("also", {}), **{f"scheduler{number}": config.scheduler
                                                         for number, config in enumerate(self.lr_scheduler_configs)}}
            on_workers = {"optimizer_on": "workers", "also": also}
        self.job = rt.join(module, self.optimizers if self._on_workers else self.optimizers[0], self._loader,
                           evaluate=self._evaluate, epochs=trainer.max_epochs, job_settings=self._job_settings, **on_workers,
                           **self._settings)
        for config in self.lr_scheduler_configs:
            if config.interval == "step":
                self.job.follow(config.scheduler)

    def on_train_end(self) -> None:
        # Lightning counts the batches: the evaluation of the last pass is still to be done.
        if self.job is not None and self._loader is not None and not self._loader.finish():
            self.job.leave()  # After max_steps, say: what is left is for others.
        super().on_train_end()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        # Where batches are accumulated, and after the job, it is what this worker has.
        return self.job.state_dict() if self.between_batches() else super().lightning_module_state_dict()

    def teardown(self) -> None:
        if self.job is not None:
            self.job.leave()  # After an exception, say.
        super().teardown()


class _Passes(pl.Callback):
    """Validation at the end of a pass. Lightning counts batches to know it; this worker has a share of them."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._every: Any = None  # The Trainer's own, while another is set.

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._every is not None:
            trainer.val_check_batch, self._every = self._every, None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._strategy.ends_pass() and trainer.val_check_interval == 1.0:
            trainer.val_check_batch, self._every = 1, trainer.val_check_batch

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._strategy.between_batches():
            self._strategy.job.pull()
            self._strategy.job._core.pause()

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._strategy.between_batches():
            self._strategy.job._core.resume()


def _of_torch(loader: Any) -> rt.DataLoader:
    """Ours in place of one of torch."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"the training loader is a {type(loader).__module__}.{type(loader).__name__}, expected one of "
                        "torch.utils.data or of recon.torch")
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return rt.DataLoader(loader.dataset)  # It says what is wrong.
    options = {name: getattr(loader, name) for name in _OPTIONS}
    if loader.batch_size is None:
        del options["drop_last"]
        return rt.DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **options)
    drawn = type(loader.sampler) is torch.utils.data.RandomSampler and not loader.sampler.replacement and (
        len(loader.sampler) == len(loader.dataset))
    plain = drawn or type(loader.sampler) is torch.utils.data.SequentialSampler
    return rt.DataLoader(loader.dataset, loader.batch_size, shuffle=drawn, sampler=None if plain else loader.sampler,
                         **options)


pl.strategies.StrategyRegistry.register(Strategy.strategy_name, Strategy, description="a worker of a recon job",
                                        override=True)
