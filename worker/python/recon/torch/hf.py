"""A Hugging Face Trainer whose own loop trains in a job.

    import recon.torch.hf
    trainer = recon.torch.hf.Trainer(model=model, args=args, train_dataset=data, eval_dataset=tests)
    trainer.train()

For a Trainer of another class: ``class MyTrainer(recon.torch.hf.InJob, Seq2SeqTrainer): pass``. What it logs and saves
is this worker's: the job's own are in `reconctl status`, and in the server's snapshots.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers

import recon.torch as rt


class _Loader(rt.DataLoader):
    skips_done_passes = True  # The Trainer's loop ends after a pass without a batch.


class InJob:
    """Goes before the Trainer's class.

    Arguments beside the Trainer's:
        job_settings: as in `recon.torch.join`.
        worker_settings: flags of recon-worker, ``{"codec": "topk:0.01"}``.

    The batch is ``per_device_train_batch_size``, the passes are ``num_train_epochs``; ``max_steps`` ends this worker's
    loop, and not the job. Where there is an ``eval_dataset``, one worker evaluates after each pass.
    """

    def __init__(self, *args: Any, job_settings: dict[str, Any] | None = None,
                 worker_settings: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.job: rt.Job | None = None
        self._job_settings, self._worker_settings = job_settings or {}, worker_settings or {}
        self._job_loader: rt.DataLoader | None = None
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise ValueError(f"{self.args.world_size} processes of torch.distributed and {self.args.n_gpu} GPUs: each "
                             "worker of a job is one process with one device, see `recon run`")

    def get_train_dataloader(self) -> rt.DataLoader:
        if self._job_loader is None:
            dataset, collate = self.train_dataset, self.data_collator
            if hasattr(dataset, "column_names"):  # A data set of `datasets`.
                dataset = self._remove_unused_columns(dataset, description="training")
            else:
                collate = self._get_collator_with_removed_columns(collate, description="training")
            self._job_loader = _Loader(dataset, batch_size=self.args.per_device_train_batch_size, collate_fn=collate,
                                       num_workers=self.args.dataloader_num_workers)
        return self._job_loader

    def create_optimizer(self, *args: Any, **options: Any) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args, **options)
        if self.job is None:
            # Accelerate wraps the optimizer afterwards: what it calls is this one's step().
            self.job = rt.join(self.model, optimizer, self.get_train_dataloader(),
                               evaluate=self._evaluate_for_job if self.eval_dataset is not None else None,
                               epochs=math.ceil(self.args.num_train_epochs), job_settings=self._job_settings,
                               **self._worker_settings)
        return optimizer

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any, **options: Any) -> torch.Tensor:
        labels = inputs.get("labels") if hasattr(inputs, "get") else None
        if self.job is not None and isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            # The loss is a mean over tokens, and so is that of the workers together.
            self.job.weigh((labels != -100).sum())
        return super().training_step(model, inputs, *args, **options)

    def train(self, *args: Any, **options: Any) -> Any:
        output = super().train(*args, **options)
        if self.job is not None:
            # The Trainer counts the batches: the evaluation of the last pass is still to be done.
            if not self.get_train_dataloader().finish():
                self.job.leave()  # After max_steps, say: what is left is for others.
        return output

    def create_scheduler(self, *args: Any, **options: Any) -> Any:
        made = self.lr_scheduler is None
        scheduler = super().create_scheduler(*args, **options)
        if made and self.job is not None:
            self.job.follow(scheduler)
        return scheduler

    def _evaluate_for_job(self, _: torch.nn.Module) -> dict[str, Any]:
        output = self.evaluation_loop(self.get_eval_dataloader(), description="Evaluation")
        return {name.removeprefix("eval_"): (value * output.num_samples, output.num_samples)
                for name, value in output.metrics.items() if isinstance(value, (int, float))}


class Trainer(InJob, transformers.Trainer):
    """`transformers.Trainer` as a worker of a job."""
