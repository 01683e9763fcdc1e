"""A model whose optimizer runs in the script, on every worker of a job, as with DistributedDataParallel: after ``backward()``
gradients are the mean over the workers of the step, and what the script does with them it does everywhere."""

from __future__ import annotations

import atexit
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from recon import _core
from recon._leases import Batch, JobDone
from recon._worker import flags_of
from recon.torch._evaluation import evaluate_for
from recon.torch._loop import ALONE_TEXT, KEPT_TEXT, Loop, PassOver
from recon.torch._optimizers import unwrapped
from recon.torch._overlap import outside_compiled
from recon.torch._schedule import StepProgress, keep_to
from recon.torch._shared_state import WAIT_SECONDS, StateShare
from recon.torch._step_tensors import aliases, hooked, shared_buffers, trained
from recon.torch._tensors import DTYPES, _tensor_of, as_kept, number_of
from recon.torch._worker_state import WorkerState, named, stateful

_log = logging.getLogger("recon")

# Groups of what a push has besides gradients, which travel in FP32 whatever the codec is.
_BUFFERS, _FLAG_GROUP = "buffers", "flags"
# Exports leave out what is called so.
_GRADIENT = "gradient/"
# Which parameters have a gradient, and whether any is not finite.
_FLAGS = "gradient/flags"


class WorkersStepJob(StateShare):
    """This process' part in a job whose workers have the optimizer; `recon.torch.join` makes it.

    The script's loop is that of one process: every worker goes through every step of the job, with a batch of its own, or,
    while it has none (it has just come, evaluates, or finds no work left in a pass), with one that does not count. So
    optimizers, schedulers and whatever follows them are the same at all workers after each step.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], loader: Any,
                 evaluate: Callable[..., dict[str, Any]] | None, epochs: int, scheduler: Any, also: Mapping[str, Any],
                 job_settings: dict[str, Any], settings: dict[str, Any]) -> None:
        self.model = model
        self.loader = loader
        self._members = None
        self.loss: float | None = None
        self._evaluate = evaluate
        self._names, self._parameters = trained(model, optimizers)
        self._aliases = aliases(model, dict(zip(map(id, self._parameters), self._names)))
        self._buffers = shared_buffers(model)
        parts = {f"optimizer{number}": optimizer for number, optimizer in enumerate(optimizers)}
        if scheduler is not None:
            parts["scheduler"] = stateful("scheduler", scheduler)
        parts.update(named(also))
        self._state = WorkerState(dict(zip(self._names, self._parameters)), parts)
        self._connect(loader, epochs, job_settings, settings)
        self._progress = StepProgress(len(loader))
        if scheduler is not None:
            self.follow(scheduler)
        self._pulled = -1  # The step whose mean is here.
        self._last: Any = None  # What the last backward was of, as `Handed` has it.
        self._wants_spare = False  # Others have batches for a step to which the script reads ahead.
        self._began = 0.0
        self._left = False
        self._active = False
        self._said_void = self._warned = False
        self._newest: Any = None  # What the loader gave last.
        self._optimizers, self._stepped_by = len(optimizers), set[int]()  # Since the last backward.
        self._row_sparse: set[str] = set()  # Parameters whose gradients are sparse tensors of rows.
        self.data_epoch = 0  # The pass that the job is in, as it said last.
        came, note_step = outside_compiled(self._came), outside_compiled(self._note_step)
        self._hooks = [hooked(parameter, came) for parameter in self._parameters]
        self._hooks += [optimizer.register_step_post_hook(note_step) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before_step)
            optimizer._recon_job = self
        self._exchange_outside = outside_compiled(self._exchange)
        atexit.register(self.leave)

    def _connect(self, loader: Any, epochs: int, job_settings: dict[str, Any], settings: dict[str, Any]) -> None:
        if str(job_settings.get("sync", "bsp")) != "bsp":
            raise ValueError(f"sync={job_settings['sync']} with optimizer_on='workers': all workers make each step together "
                             "(bsp); leave the optimizer to the server for other policies")
        specs = [(_GRADIENT + name, list(parameter.shape), "default", False, "F32")
                 for name, parameter in zip(self._names, self._parameters)]
        specs += [(name, list(buffer.shape), _BUFFERS, True, DTYPES[buffer.dtype]) for name, buffer in self._buffers]
        specs.append((_FLAGS, [len(self._parameters) + 1], _FLAG_GROUP, False, "F32"))
        specs += self._state.specs
        proposed = [("optimizer", "mean")] + loader.settings(job_settings, "bsp")
        proposed += [("batch", str(loader.batch_size)), ("data-epochs", str(epochs))] + flags_of(job_settings)
        codec = str(settings.get("codec", "fp16"))
        settings = {"pull_codec": "fp32", **settings, "codec": f"{codec},{_FLAG_GROUP}=fp32"}
        try:
            self._core = _core.Worker(flags_of(settings), type(self.model).__name__, specs, self._aliases, loader.samples,
                                      1 if self._evaluate else 0, proposed, loader.fingerprint)
        except _core.Refused as error:
            if "--optimizer mean" not in str(error):
                raise
            raise _core.Refused(f"{error}. Or give join() optimizer_on='server': in this job the server has the optimizer") from None
        if not self._core.job()["means"]:
            raise RuntimeError("the server has the optimizer in this job (--optimizer): join() with "
                               "optimizer_on='server', or let the server's flags say --optimizer mean")
        self._name, self._pid, self._weight = self._core.name, os.getpid(), 0
        self.seed = int(self._core.job()["seed"])
        self._share_out(loader.share(self._core), [])
        self._begin_state(self._core.placement())

    # What the loader asks.

    @property
    def finished(self) -> bool:
        """The job is done: there are no more batches."""
        if self._leases.finished and not self._left and not self._owes():
            self._end(finished=True)
        return self._left

    def keep_spare(self, data: Any) -> None:
        self._newest = data

    def take(self, loop: Loop) -> Batch | None:
        """The next batch of the loop's pass; None if there is none now."""
        with self._lock:
            if self._pass_ends(loop, self._step_of_next()):
                raise PassOver
            return super().take(loop)

    def owes_step(self, loop: Loop, waiting: Batch | None) -> bool | None:
        with self._lock:
            return self._owes_step(loop, waiting)

    def _owes_step(self, loop: Loop, waiting: Batch | None) -> bool | None:
        if not self._handed.threaded:
            self._last = None  # What the script had is done.
        self._leave_behind()
        if self._left:
            return False
        if waiting is None and self._wants_spare:
            self._wants_spare = False
            return True
        if waiting is None and self._pass_ends(loop, self._step_of_next()):
            return None
        if len(self._handed):
            return False
        if not self._enter_pass(loop.data_epoch) and not loop.skips_to(self.data_epoch):
            return None
        return self._owes_now(loop, waiting)

    def _leave_behind(self) -> None:
        """What the script has passed over since its last step is done."""
        behind = self._handed.take_left_behind()
        if any(entry.spare for entry in behind):
            raise RuntimeError("the loop took no step for a batch that does not count (job.counts): backward() and step() are "
                               "those of all workers")
        if behind:
            self._pass_over([entry.batch for entry in behind if not entry.lost])

    def _enter_pass(self, data_epoch: int) -> bool:
        """Before a batch of that pass. False if the job is in a later one. A worker that has come takes the job's state when
        its script has come to the job's pass: whatever the script does once a pass is in that state."""
        if self._has_state:
            return True
        kind, said = self._ask(0), self._core.state()
        while kind != "finished" and not said["ready"]:
            time.sleep(WAIT_SECONDS)
            kind, said = self._ask(0), self._core.state()
        self.data_epoch = int(said["data_epoch"])
        if kind != "finished" and self.data_epoch > data_epoch:
            return False
        self._take_state()
        return True

    def _owes_now(self, loop: Loop, waiting: Batch | None) -> bool | None:
        """Whether this worker has to take a step of others before it computes `waiting`, or before it waits for work. None if
        that step is of a later pass."""
        if not self._owes_before(waiting):
            return False
        said = self._core.state()
        if self._next >= int(said["data_epoch_begins"]) and int(said["data_epoch"]) > loop.data_epoch:
            return None
        while True:
            state = self._core.pull_mean(self._next)
            if state == "here":
                self._pulled = self._next
                return True
            if state == "gone":
                self._take_state()
                if not self._owes_before(waiting):
                    return False
                continue
            if waiting is None:
                return False
            time.sleep(WAIT_SECONDS)

    def between_batches(self) -> None:
        """Does what the server has asked for, where no batch is under way."""
        with self._lock:
            self._serve_state()
            if self._handed.threaded and not self._stepped:
                return
            while self._leases.asked and self.may_interrupt():
                kind, lease = self._leases.asked.popleft()
                if kind == "initial_values":
                    self._core.send_initial_values(self._initial())
                else:
                    self._evaluate_for(lease)
                self._enter_next()

    def rest(self, loop: Loop | None) -> bool:
        with self._lock:
            self._pass_over(self._handed.take_passed_over())
            said = self._core.state()
            if not self._reads_ahead():
                self._idle += 1
                self._report()
                return True
            own = len(self._handed.batches) > 0
            if loop is not None and own and loop.data_epoch > int(said["data_epoch"]) and not self._handed.threaded:
                return False  # The pass does not begin before these are done.
            reach = said["others_reach"]
            self._wants_spare = reach is not None and int(reach) > self._step_ahead()
            return True

    def _pass_ends(self, loop: Loop | None, at: int) -> bool:
        """Whether loops of that pass end before the step `at`. That of the last one also ends when all is done."""
        if loop is not None and loop.data_epoch >= self.epochs - 1 and not self._reads_ahead():
            return False
        said = self._core.state()
        return (loop is not None and not self._left and said["ended_pass"] is not None and at >= int(said["ends_at"])
                and loop.data_epoch <= int(said["ended_pass"]))

    def _enter(self, batch: Batch, first: bool) -> None:
        self._began = time.monotonic()
        self._idle = 0

    def begin_idle(self) -> bool:
        self._last = None  # A loop of this process alone begins: what came before it is done.
        return super().begin_idle()

    def _look(self, beginning: bool = False) -> None:
        pass

    # What the script may ask.

    def report(self, loss: Any) -> None:
        """The batch's mean loss, for `reconctl status`; a number or a tensor, which is read when gradients are exchanged."""
        self.loss = loss

    def weigh(self, count: Any) -> None:
        """How much this batch counts in the step's mean over workers, in place of its samples: of tokens, say, where the loss
        is a mean over these. Between a batch and its backward."""
        if int(count) < 0:
            raise ValueError(f"weigh({int(count)}), expected 0 or more")
        if not len(self._handed) and not self._left:
            raise RuntimeError("weigh() goes between a batch and its backward(): the gradient is on its way")
        self._weight = max(1, int(count))

    @property
    def name(self) -> str:
        """As `reconctl status` shows it."""
        return self._name

    @property
    def step(self) -> int:
        """How many steps this worker's state has taken."""
        return self._next

    @property
    def counts(self) -> bool:
        """Whether the batch whose backward is next, or was last, is one of this worker's: losses of others are of no
        interest."""
        entry = self._handed.first if len(self._handed) else self._last
        return entry is None or not entry.lost

    def indices(self) -> list[int]:
        """The samples of the batch whose backward is next, or was last; none while that does not count."""
        entry = self._handed.first if len(self._handed) else self._last
        return [] if entry is None or entry.lost else [int(index) for index in entry.batch.indices]

    def state_dict(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """The model's state as it is now, copied."""
        return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in (self.model if model is None else model).state_dict().items()}

    def pull(self) -> None:
        """Nothing to do: the model is the job's after every step."""

    def follow(self, scheduler: Any) -> None:
        """Keeps a scheduler that is stepped after each batch, or after each ``step()`` of several, to the job's progress, as
        `join` does with its own: its horizon is that of one process, however many workers there are."""
        keep_to(unwrapped(scheduler), self._progress)

    def leave(self) -> None:
        """Leaves the job, if the script ends before it is done: what is under way is finished first."""
        if not self._left and os.getpid() == self._pid:
            self._end(finished=False)

    # Gradients.

    def _came(self, _: torch.Tensor) -> None:
        if self._active or self._left:
            return
        alone = self.loader.went_alone
        if not len(self._handed) and self._last is None and (alone or not self._claim()):
            raise RuntimeError("backward() without a batch of the loader: gradients are those of a batch"
                               + KEPT_TEXT * self.loader.keeps_batches() + ALONE_TEXT * alone)
        self._active = True
        torch.autograd.Variable._execution_engine.queue_callback(self._exchange_outside)

    @torch.no_grad()
    def _exchange(self) -> None:
        self._active = False
        with self._lock:
            if self._handed.threaded:
                self._serve_state()
            entry = self._handed.take_next()
            again = entry is None
            if entry is None:
                entry = self._last  # A second backward of one batch: the others have one, too.
            elif not entry.lost and not entry.begun:
                entry.lost = not self._leases.begin(entry.batch)
            self._last = entry
            if again and not entry.lost and not self._leases.begin(entry.batch):
                self._leases.handed_out += 1  # It was pushed before.
                entry.lost = True
            if not entry.lost:
                self._push(entry.batch, again)
                self.spare = self._newest
            else:
                self._weight = 0
                if not self._follow_others():
                    return self._take_nothing()
            self._take_mean(self._core.mean(), again)
            self._next += 1
            self._stepped = False
            self._stepped_by.clear()
            self._handed.forget_begun()
            self._enter_next()

    def _push(self, batch: Batch, again: bool) -> None:
        flat = torch.from_numpy(self._core.gradient())
        flags = np.zeros(len(self._parameters) + 1, np.float32)
        for number, (name, parameter) in enumerate(zip(self._names, self._parameters)):
            place = self._place(flat, _GRADIENT + name)
            if parameter.grad is None:
                place.zero_()
                continue
            gradient = parameter.grad
            if gradient.is_sparse:
                if gradient.sparse_dim() == 1 and gradient.dim() > 1:
                    self._row_sparse.add(name)
                gradient = gradient.to_dense()
            place.copy_(gradient.reshape(-1))
            flags[number] = 1
            if not bool(place.isfinite().all()):  # An overflow under a GradScaler is everybody's.
                place.zero_()
                flags[-1] = 1
        self._place(flat, _FLAGS).copy_(torch.from_numpy(flags))
        for name, buffer in self._buffers:
            self._place(flat, name).copy_(buffer.reshape(-1))
        loss, self.loss = self.loss, None
        weight, self._weight = self._weight, 0
        self._core.end(batch.samples, time.monotonic() - self._began, number_of(loss), [], False, weight)
        self._note_pushed(batch, again)
        state = self._core.await_mean(self._next)
        if state == "gone":
            raise RuntimeError(f"the mean of step {self._next} is kept no more: this worker stood still for too long. Start it "
                               "again")

    def _note_pushed(self, batch: Batch, again: bool) -> None:
        """The batch's split counts once a state that has its last step is saved."""
        step = self._core.step
        if not again:
            self._leases.handed_out -= 1
        if batch.last and self._leases.take_open(batch.split):
            self._owed_splits.append((batch.split, step))
        elif batch.last and self._owed_splits and self._owed_splits[-1][0] == batch.split:
            self._owed_splits[-1] = (batch.split, step)

    def _close(self, batches: Sequence[Batch]) -> None:
        """Nothing comes of these: they count as done with the last step."""
        for batch in batches:
            self._leases.handed_out -= 1
            if batch.last and self._leases.take_open(batch.split):
                self._owed_splits.append((batch.split, self._next - 1))

    def _follow_others(self) -> bool:
        """Waits for the mean of a step that is of others. False if no such step comes: whoever had a batch for it is gone."""
        said = self._core.state()
        while self._pulled != self._next:
            state = self._core.pull_mean(self._next)
            if state == "here":
                self._pulled = self._next
                break
            if state == "gone":
                raise RuntimeError(f"the mean of step {self._next} is kept no more: this worker stood still for too long. Start "
                                   "it again")
            # What this worker has for later steps, others wait for. And what the server said was before this answer.
            reach = said["others_reach"]
            if said["ended_pass"] is not None and int(said["ended_pass"]) == int(said["data_epoch"]) and (
                    self._next >= int(said["ends_at"])):
                return False
            if self._step_ahead() > self._next + len(self._handed) or self._handed.batches or (
                    reach is not None and int(reach) <= self._next):
                return False
            time.sleep(WAIT_SECONDS)
            self._report()
            self.peek()
            said = self._core.state()
        return True

    def _take_nothing(self) -> None:
        """The script has computed a batch that is of no step."""
        self._progress.void = True
        for parameter in self._parameters:
            parameter.grad = None
        if not self._said_void:
            self._said_void = True
            _log.warning("%s has read a batch ahead for which no step came, since another worker is gone or a pass has ended: "
                         "gradients are None this once, and what the script counts by steps has counted one too many", self.name)

    def _take_mean(self, flat: np.ndarray, again: bool) -> None:
        mean = _tensor_of(flat)
        self._progress.take(0 if again else max(1, int(self._core.mean_pushes)))
        flags = self._place(mean, _FLAGS)
        overflow = bool(flags[-1] > 0)
        for number, (name, parameter) in enumerate(zip(self._names, self._parameters)):
            if flags[number] <= 0:
                parameter.grad = None
                continue
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            if overflow:
                parameter.grad.fill_(float("inf"))
            else:
                parameter.grad.copy_(self._place(mean, _GRADIENT + name).view(parameter.shape))
            if name in self._row_sparse:
                parameter.grad = parameter.grad.to_sparse(1)
        for name, buffer in self._buffers:
            values = self._place(mean, name).view(buffer.shape)
            buffer.copy_(as_kept(buffer, values))

    # Steps.

    def _before_step(self, *_: Any) -> None:
        if not self._left or not self._leases.finished:
            return
        if self.loader.keeps_batches():
            raise JobDone("the job is done, and this is a step() on batches of its last pass" + KEPT_TEXT)
        if not self._warned:
            self._warned = True
            warnings.warn(f"the job is done, after {self.epochs} passes: what step() does from here on is of this process' model "
                          "alone", RuntimeWarning, stacklevel=3)

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped_by.add(id(optimizer))
        self._stepped = not self._handed.threaded or len(self._stepped_by) == self._optimizers
        if self._left:
            return
        with self._lock:
            passed = self._handed.note_step()
            if passed:
                self._pass_over(passed)
            if not len(self._handed) and len(self._stepped_by) == self._optimizers:
                self.loader.after_step()

    def _owes(self) -> bool:
        return self._next < self._core.state()["frontier"]

    def _owes_before(self, waiting: Batch | None) -> bool:
        return self._owes() if waiting is None else self._next < self._core.next_step_from(self._next)

    # The rest.

    def _evaluate_for(self, lease: int) -> None:
        assert self._evaluate is not None
        evaluate_for(self._core, self.model, self._evaluate, lease)

    def _end(self, finished: bool) -> None:
        self._left = self._progress.over = True
        self._handed.forget()
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self.leave)
        if self._uploading is not None:
            self._uploading.join()
        try:
            self._core.leave(finished)
        finally:
            self._core.close("the script has ended")
