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


class _Later:
    """The state of a Trainer's scheduler, which is made after its optimizer."""

    def __init__(self, trainer: transformers.Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        scheduler = self._trainer.lr_scheduler
        return {} if scheduler is None else scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._trainer.lr_scheduler.load_state_dict(state)


class InJob:
    """Goes before the Trainer's class.

    Arguments beside the Trainer's:
        job_settings: as in `recon.torch.join`.
        worker_settings: flags of recon-worker, ``{"codec": "topk:0.01"}``.
        optimizer_on: as in `recon.torch.join`.

    The batch is ``per_device_train_batch_size``, the passes are ``num_train_epochs``; ``max_steps`` ends this worker's
    loop, and not the job. Where there is an ``eval_dataset``, one worker evaluates after each pass.
    """

    def __init__(self, *args: Any, job_settings: dict[str, Any] | None = None,
                 worker_settings: dict[str, Any] | None = None, optimizer_on: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_workers = rt.steps_on_workers(optimizer_on, job_settings or {})
        self._left_of_group, self._cut_short = 0, False
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
                               optimizer_on="workers" if self._on_workers else "server",
                               also={"scheduler": _Later(self)} if self._on_workers else None, **self._worker_settings)
        return optimizer

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        # The Trainer counts the batches of a pass to know its last step; this worker has a share of them.
        self._left_of_group, self._cut_short = len(batches), len(batches) < num_batches
        return batches, items

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        labels = inputs.get("labels") if hasattr(inputs, "get") else None
        if self.job is not None and isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            # The loss is a mean over tokens, and so is that of the workers together: where it is divided by the tokens of all
            # batches that are accumulated, by these.
            whole = self._on_workers and num_items_in_batch is not None
            self.job.weigh(num_items_in_batch if whole else (labels != -100).sum())
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._left_of_group -= 1
        if self._on_workers and self._cut_short and self._left_of_group == 0:
            self._step_rest(model)
        return loss

    def _step_rest(self, model: torch.nn.Module) -> None:
        """The pass is over before as many batches are accumulated as a step has."""
        self.accelerator.gradient_state._set_sync_gradients(True)
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self.lr_scheduler.step()
        model.zero_grad()
        self.state.global_step += 1

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
