"""A callback with which Lightning's own loop trains in a job.

    loader = recon.torch.lightning.DataLoader(train_set, batch_size=128)
    trainer = lightning.Trainer(max_epochs=10, callbacks=[recon.torch.lightning.InJob(loader)])
    trainer.fit(module, loader)

The module has one optimizer, which Lightning steps. What Lightning logs and saves is this worker's: the job's own are
in `reconctl status`, and in the server's snapshots.
"""

from __future__ import annotations

from typing import Any

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

import recon.torch as rt


class DataLoader(rt.DataLoader):
    """`recon.torch.DataLoader`, whose first pass is the one that the job is in."""

    skips_done_passes = True


class InJob(pl.Callback):
    """Makes the process a worker when training begins. Arguments are those of `recon.torch.join`; the passes are the
    Trainer's ``max_epochs``."""

    def __init__(self, loader: rt.DataLoader, *, evaluate: Any = None, job_settings: dict[str, Any] | None = None,
                 **settings: Any) -> None:
        self.job: rt.Job | None = None
        self._loader, self._evaluate = loader, evaluate
        self._job_settings, self._settings = job_settings or {}, settings

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            raise ValueError(f"the Trainer has {trainer.world_size} processes: each worker of a job is one process "
                             "with one device, see `recon run`")
        if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
            raise ValueError(f"the module has {len(trainer.optimizers)} optimizers and automatic_optimization="
                             f"{pl_module.automatic_optimization}: expected one, that Lightning steps")
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise ValueError(f"the Trainer has max_epochs={trainer.max_epochs}: a job has a number of passes")
        self.job = rt.join(pl_module, trainer.optimizers[0], self._loader, evaluate=self._evaluate,
                           epochs=trainer.max_epochs, job_settings=self._job_settings, **self._settings)
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step":
                self.job.follow(config.scheduler)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning counts the batches: the evaluation of the last pass is still to be done.
        if self.job is not None and not self._loader.finish():
            self.job.leave()  # After max_steps, say: what is left is for others.
