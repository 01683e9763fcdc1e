"""A loop over the loader of a job whose workers have the optimizer: batches of this worker's, and between them some that do not
count, for steps of others."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from recon._leases import IDLE_SECONDS, JobDone
from recon.torch._loop import PassOver

if TYPE_CHECKING:
    from recon.torch._workers_step import WorkersStepJob


class StepLoop:
    """One ``for`` over the loader: of the pass whose turn it is."""

    def __init__(self, job: WorkersStepJob) -> None:
        self._job, self._loader = job, job.loader
        self._alone: Iterator[Any] | None = None  # Of a loop without gradients: all of the data, by this process alone.
        self._held: tuple[Any, Any] | None = None
        self._begun = self._over = self._ended = False
        self._gave = 0
        self.data_epoch = 0

    def __iter__(self) -> StepLoop:
        return self

    def __next__(self) -> Any:
        job = self._job
        if not self._begun:
            self._begin()
        if self._alone is not None:
            return next(self._alone)
        while not job.finished:
            if not self._enter():
                break
            owes = job.owes_step(None if self._held is None else self._held[0], self.data_epoch)
            if owes:
                return self._give(self._filler())
            if owes is None or self._over:
                break
            if self._held is None:
                self._fetch()
                continue
            (batch, data), self._held = self._held, None
            if job.begin(batch):
                job.spare = data
                return self._give(data)
        self.end()
        if self._gave == 0 and job.finished and not self._loader.skips_done_passes and self.data_epoch >= job.epochs:
            raise JobDone(f"the job is done, after {job.epochs} passes: end the loop at recon.JobDone, or give join() as many "
                          "epochs")
        raise StopIteration

    def _begin(self) -> None:
        self._begun = True
        loader = self._loader
        if not torch.is_grad_enabled():
            self._alone = loader._alone(max(0, loader._pass - 1), [])
            return
        before = loader._loop
        if before is not None:
            before.end()
        self.data_epoch, loader._pass, loader._newest = loader._pass, loader._pass + 1, weakref.ref(self)

    def _enter(self) -> bool:
        if self._job.enter(self.data_epoch):
            return True
        if self._gave or not self._loader.skips_done_passes:
            return False
        self.data_epoch = self._job.data_epoch
        self._loader._pass = self.data_epoch + 1
        return True

    def _fetch(self) -> None:
        self._job.between_batches()
        try:
            self._held = self._loader._fetch(self._job, self)
        except PassOver:
            self._over = True  # What others do yet of this pass comes first.
            return
        if self._held is None and not self._loader._loads() and self._job.rest():
            time.sleep(IDLE_SECONDS)

    def _filler(self) -> Any:
        if self._job.spare is None:
            self._job.spare = self._held[1] if self._held is not None else next(self._loader._alone(self.data_epoch, []))
        return self._job.spare

    def _give(self, data: Any) -> Any:
        self._gave += 1
        return data

    # What the loader asks.

    def starts_with(self, first: Any) -> bool:
        """Whether the next batch is of this loop."""
        return bool(first.data_epoch <= self.data_epoch)

    def is_over(self) -> bool:
        """Whether no batch of this worker's comes any more; waits for the next one."""
        while self._held is None and not self._over and not self._job.finished:
            self._fetch()
        return self._held is None

    def end(self) -> None:
        """No more batches: what was fetched and not given goes back."""
        if not self._begun or self._alone is not None or self._ended:
            return
        self._over = self._ended = True
        if self._job.finished_or_gone():
            return
        if self._held is not None:
            self._loader._put_back([self._held])
            self._held = None
        self._loader._close()

    def __del__(self) -> None:
        try:
            self.end()
        except Exception:  # noqa: BLE001: a process that ends, or a job that is lost, which the next call says.
            pass
