"""A model whose optimizer runs in the script, on every worker of a job, as with DistributedDataParallel: after ``backward()``
gradients are the mean over the workers of the step, and what the script does with them it does everywhere."""

from __future__ import annotations

import atexit
import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from recon import _core
from recon._leases import Batch
from recon._worker import flags_of
from recon.torch._evaluation import evaluate_for
from recon.torch._loop import PassOver, StepsOfAll
from recon.torch._step_loop import StepLoop
from recon.torch._step_tensors import aliases, hooked, shared_buffers, trained
from recon.torch._tensors import DTYPES, _tensor_of, as_kept
from recon.torch._worker_state import WorkerState, named, stateful

_log = logging.getLogger("recon")

# Groups of what a push has besides gradients, which travel in FP32 whatever the codec is.
_BUFFERS, _FLAG_GROUP = "buffers", "flags"
# Exports leave out what is called so.
_GRADIENT = "gradient/"
# Which parameters have a gradient, and whether any is not finite.
_FLAGS = "gradient/flags"
# With so many splits that wait for the state to be saved, this worker asks for it.
_UNCOVERED_MAX = 8
_WAIT_SECONDS = 0.02
_SAY_SECONDS = 10.0


class WorkersStepJob(StepsOfAll):
    """This process' part in a job whose workers have the optimizer; `recon.torch.join` makes it.

    The script's loop is that of one process: every worker goes through every step of the job, with a batch of its own, or,
    while it has none (it has just come, evaluates, or finds no work left in a pass), with one that does not count. So
    optimizers, schedulers and whatever follows them are the same at all workers after each step.

    What a newcomer needs comes from a worker that lives, by way of the server. Where none lives, training goes on from the
    state that the server has, and what was computed after it is computed again.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], loader: Any,
                 evaluate: Callable[..., dict[str, Any]] | None, epochs: int, scheduler: Any, also: Mapping[str, Any],
                 job_settings: dict[str, Any], settings: dict[str, Any]) -> None:
        self.model = model
        self.loader = loader
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
        self._next = 0  # The next step that this worker's state is to take.
        self._batches: list[Batch] = []  # Since the last exchange.
        self._filler = False  # The batch that the script has does not count: its step is that of others.
        self._exchanged = self._stepped = False
        self._began = 0.0
        self._owed_splits: collections.deque[tuple[int, int]] = collections.deque()  # Closed when that step is saved.
        self._uploading: threading.Thread | None = None
        self._line = 0  # Of the job's states, that of this worker's.
        self._upload = self._failed_upload = 0  # The numbers of the last upload, and of the last that came to nothing.
        self._left = False
        self._active = False
        self.spare: Any = None  # A batch for steps of others.
        self.data_epoch = 0  # The pass that the job is in, as it said last.
        self.rank, self.epochs = 0, epochs
        self._hooks = [hooked(parameter, self._came) for parameter in self._parameters]
        self._hooks += [optimizer.register_step_post_hook(self._note_step) for optimizer in optimizers]
        self._has_state = False
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
        self._core = _core.Worker(flags_of(settings), type(self.model).__name__, specs, self._aliases, loader.samples,
                                  1 if self._evaluate else 0, proposed, loader.fingerprint)
        if not self._core.job()["means"]:
            raise RuntimeError("the server has the optimizer in this job (--optimizer): join() without "
                               "optimizer_on='workers', or let the server's flags say --optimizer mean")
        self.seed = int(self._core.job()["seed"])
        self._leases = loader.share(self._core)
        placement = self._core.placement()
        self._state.place(placement)
        self._at = {name: (offset, size) for name, offset, size in placement}

    # What the loader asks.

    @property
    def finished(self) -> bool:
        """The job is done: there are no more batches."""
        if self._leases.finished and not self._left and not self._owes():
            self._end(finished=True)
        return self._left

    def loop(self) -> StepLoop:
        return StepLoop(self)

    @property
    def workers(self) -> int:
        """How many the job has now."""
        return 1 if self._left else max(1, int(self._core.job()["workers"]))

    def finished_or_gone(self) -> bool:
        """Whether nothing is to be put back any more."""
        return self._left or self._leases.finished

    def peek(self) -> Batch | None:
        """The next batch, if there is one now; it is not taken."""
        return None if self._left else self._leases.peek(self._batches)

    def take(self, loop: StepLoop) -> Batch | None:
        """The next batch of the loop's pass; None if there is none now."""
        first = self.peek()
        if self.finished_or_gone() or (first is not None and not loop.starts_with(first)):
            raise PassOver
        return None if first is None else self._leases.take()

    def samples_of(self, batch: Batch) -> Sequence[int]:
        return batch.indices

    def enter(self, data_epoch: int) -> bool:
        """Before a batch of that pass. False if the job is in a later one. A worker that has come takes the job's state when
        its script has come to the job's pass: whatever the script does once a pass is in that state."""
        if self._has_state or self._left:
            return True
        kind, said = self._ask(0), self._core.state()
        while kind != "finished" and not said["ready"]:
            time.sleep(_WAIT_SECONDS)
            kind, said = self._ask(0), self._core.state()
        self.data_epoch = int(said["data_epoch"])
        if kind != "finished" and self.data_epoch > data_epoch:
            return False
        self._take_state()
        return True

    def owes_step(self, waiting: Batch | None, data_epoch: int) -> bool | None:
        """Whether this worker has to take a step of others before it computes `waiting`, or before it waits for work: the
        script gets a batch for it that does not count. None if that step is of a later pass."""
        self._close_body()
        if self._left or not self._owes_before(waiting):
            return False
        said = self._core.state()
        if self._next >= int(said["data_epoch_begins"]) and int(said["data_epoch"]) > data_epoch:
            return None
        while True:
            state = self._core.pull_mean(self._next)
            if state == "here":
                break
            if state == "gone":
                self._take_state()
                if not self._owes_before(waiting):
                    return False
                continue
            if waiting is None:
                return False
            time.sleep(_WAIT_SECONDS)
        self._filler, self._exchanged = True, False
        return True

    def begin(self, batch: Batch) -> bool:
        self._close_body()
        if not self._leases.begin(batch):
            return False
        if not self._batches:
            self._began = time.monotonic()
        self._filler, self._exchanged = False, False
        self._batches.append(batch)
        return True

    def between_batches(self) -> None:
        """Does what the server has asked for, where no batch is under way."""
        self._close_body()
        self._serve_state()
        while self._leases.asked and not self._batches:
            kind, lease = self._leases.asked.popleft()
            if kind == "initial_values":
                self._core.send_initial_values(self._initial())
            else:
                self._evaluate_for(lease)

    def rest(self) -> bool:
        """Nothing to compute now. Whether to wait."""
        if self._batches:
            self._drop_batches()
            return False
        self._report(idle=True)
        return not self._leases.asked and not self._leases.finished

    # What the script may ask.

    def report(self, loss: Any) -> None:
        """The batch's mean loss, for `reconctl status`; a number or a tensor, which is read when gradients are exchanged."""
        self.loss = loss

    @property
    def name(self) -> str:
        """As `reconctl status` shows it."""
        return self._core.name

    @property
    def step(self) -> int:
        """How many steps this worker's state has taken."""
        return self._next

    @property
    def counts(self) -> bool:
        """Whether the batch that the script has is one of this worker's: losses of others are of no interest."""
        return not self._filler

    def indices(self) -> list[int]:
        """The samples of the batches since the last exchange of gradients; none while the batch does not count."""
        return [int(index) for batch in self._batches for index in batch.indices]

    def state_dict(self) -> dict[str, Any]:
        """The model's state as it is now, copied."""
        return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in self.model.state_dict().items()}

    def pull(self) -> None:
        """Nothing to do: the model is the job's after every step."""

    def leave(self) -> None:
        """Leaves the job, if the script ends before it is done: what is under way is finished first."""
        if not self._left:
            self._end(finished=False)

    # Gradients.

    def _came(self, _: torch.Tensor) -> None:
        if self._active or self._left:
            return
        if not self._batches and not self._filler:
            raise RuntimeError("backward() without a batch of the loader: gradients are those of a batch")
        self._active = True
        torch.autograd.Variable._execution_engine.queue_callback(self._exchange)

    @torch.no_grad()
    def _exchange(self) -> None:
        self._active = False
        if self._filler:
            if self._exchanged:  # A second backward of one batch: the others have one, too.
                self._await_others()
        else:
            self._push()
        self._take_mean(self._core.mean())
        self._next += 1
        self._exchanged, self._stepped = True, False

    def _push(self) -> None:
        if self._exchanged:
            self._leases.begin(self._batches[-1])
        flat = torch.from_numpy(self._core.gradient())
        flags = np.zeros(len(self._parameters) + 1, np.float32)
        for number, (name, parameter) in enumerate(zip(self._names, self._parameters)):
            place = self._place(flat, _GRADIENT + name)
            if parameter.grad is None:
                place.zero_()
                continue
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            place.copy_(gradient.reshape(-1))
            flags[number] = 1
            if not bool(place.isfinite().all()):  # An overflow under a GradScaler is everybody's.
                place.zero_()
                flags[-1] = 1
        self._place(flat, _FLAGS).copy_(torch.from_numpy(flags))
        for name, buffer in self._buffers:
            self._place(flat, name).copy_(buffer.reshape(-1))
        loss, self.loss = self.loss, None
        samples = sum(batch.samples for batch in self._batches)
        self._core.end(samples, time.monotonic() - self._began, _number(loss), [])
        self._note_pushed()
        state = self._core.await_mean(self._next)
        if state == "gone":
            raise RuntimeError(f"the mean of step {self._next} is kept no more: this worker stood still for too long. Start it "
                               "again")

    def _note_pushed(self) -> None:
        """The batches' splits count once a state that has their last step is saved."""
        step = self._core.step
        for batch in self._batches:
            if not self._exchanged:
                self._leases.handed_out -= 1
            if batch.last and self._leases.take_open(batch.split):
                self._owed_splits.append((batch.split, step))
            elif batch.last and self._owed_splits and self._owed_splits[-1][0] == batch.split:
                self._owed_splits[-1] = (batch.split, step)  # A second backward of the batch.

    def _take_mean(self, flat: np.ndarray) -> None:
        mean = _tensor_of(flat)
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
        for name, buffer in self._buffers:
            values = self._place(mean, name).view(buffer.shape)
            buffer.copy_(as_kept(buffer, values))

    def _await_others(self) -> None:
        while self._core.pull_mean(self._next) == "open":
            time.sleep(_WAIT_SECONDS)

    def _place(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        offset, size = self._at[name]
        return flat[offset:offset + size]

    # Steps.

    def _note_step(self, *_: Any) -> None:
        self._stepped = True

    def _close_body(self) -> None:
        """The script comes for its next batch: what it had is done."""
        if self._filler and not self._exchanged:
            raise RuntimeError("the loop took no step for a batch that does not count (job.counts): backward() and step() are "
                               "those of all workers")
        if self._exchanged:
            self._batches = []
        self._filler = self._exchanged = False

    def _owes(self) -> bool:
        return self._next < self._core.state()["frontier"]

    def _owes_before(self, waiting: Batch | None) -> bool:
        return self._owes() if waiting is None else self._next < self._core.next_step_from(self._next)

    def _drop_batches(self) -> None:
        """Nothing comes of the batches that the script has passed over; they count as done."""
        self._core.drop()
        batches, self._batches = self._batches, []
        for batch in batches:
            self._leases.handed_out -= 1
            if batch.last and self._leases.take_open(batch.split):
                self._owed_splits.append((batch.split, self._next))

    # The state.

    def _report(self, idle: bool = False) -> None:
        owed = len(self._owed_splits)
        uncovered = owed >= _UNCOVERED_MAX or (idle and owed > 0)
        self._core.report_state(self._next, None, uncovered, self._failed_upload, self._line)

    def _serve_state(self) -> None:
        self._report()
        said = self._core.state()
        while self._owed_splits and said["saved"] > self._owed_splits[0][1]:
            self._core.close_split(self._owed_splits.popleft()[0])
        uploading = self._uploading is not None and self._uploading.is_alive()
        upload, newer = int(said["wanted"]), self._next > int(said["uploaded"])
        if upload not in (0, self._upload) and newer and not uploading and self._stepped_since_batches():
            self._upload = upload
            self._send_state(upload)

    def _stepped_since_batches(self) -> bool:
        """Whether this is between two steps: nothing is accumulated."""
        return not self._batches and (self._stepped or self._next == 0 or not self._has_gradients())

    def _has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self._parameters)

    def _send_state(self, upload: int) -> None:
        flat = np.zeros(self._core.size, np.float32)
        step, core = self._next, self._core
        self._state.store(flat, step)

        def send() -> None:
            wrong = core.send_state(flat, step, upload)
            if wrong:
                self._failed_upload = upload
                _log.info("the state before step %d did not reach the servers: %s", step, wrong)

        self._uploading = threading.Thread(target=send, name="recon-state", daemon=True)
        self._uploading.start()

    def _initial(self) -> np.ndarray:
        flat = np.zeros(self._core.size, np.float32)
        self._state.store(flat, 0)
        for name, buffer in self._buffers:
            self._place(torch.from_numpy(flat), name).copy_(buffer.detach().reshape(-1))
        wrong = [name for name in self._names if not np.isfinite(self._place(torch.from_numpy(flat), name).numpy()).all()]
        if wrong:
            raise FloatingPointError(f"the model begins with {wrong[0]}, which has values that are infinite or not a number")
        return flat

    def _ask(self, wanted: int) -> str:
        """Asks for work that this worker cannot do without the state: only what is said of it comes back."""
        self._core.report_state(None, wanted)
        kind, *_ = self._core.next_work()
        if kind == "initial_values":
            self._core.send_initial_values(self._initial())
        elif kind == "finished":
            self._leases.finished = True
        return str(kind)

    def _take_state(self) -> None:
        """Waits until this worker has the job's state: another's, or the server's where nobody lives who has one."""
        wanted: int | None = None
        began = said_at = time.monotonic()
        while True:
            kind, said = self._ask(wanted or 0), self._core.state()
            if wanted is None and said["ready"]:
                wanted = int(said["frontier"])
            newest = wanted is not None and int(said["uploaded"]) >= wanted
            if kind == "finished" or (said["ready"] and (said["take"] or newest)):
                taken = bool(said["take"])
                if taken and self._owed_splits:  # They were in this worker's own state alone.
                    raise RuntimeError("this worker has lost its state, and no other one has it: start it again")
                step = self._load()
                if step is not None and (taken or kind == "finished" or step >= (wanted or 0)):
                    self._next, self._line = int(said["frontier"]) if taken else step, int(said["line"])
                    break
            if time.monotonic() - said_at > _SAY_SECONDS:
                said_at = time.monotonic()
                _log.warning("%s has waited %.0f s for the job's state before step %s: no worker has uploaded it", self.name,
                             said_at - began, wanted)
            time.sleep(_WAIT_SECONDS)
        self._has_state = True
        self._report()

    def _load(self) -> int | None:
        """Takes the servers' state; returns the step before which it was uploaded. None while theirs are of two uploads."""
        self._core.pull()
        if not self._core.state_whole():
            return None
        flat = np.array(self._core.parameters(), copy=True)
        with torch.no_grad():
            for name, buffer in self._buffers:
                values = self._place(torch.from_numpy(flat), name).view(buffer.shape)
                buffer.copy_(as_kept(buffer, values))
        self._stepped = True
        return self._state.load(flat)

    # The rest.

    def _evaluate_for(self, lease: int) -> None:
        assert self._evaluate is not None
        evaluate_for(self._core, self.model, self._evaluate, lease)

    def _end(self, finished: bool) -> None:
        self._left = True
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self.leave)
        if self._uploading is not None:
            self._uploading.join()
        try:
            self._core.leave(finished)
        finally:
            self._core.close("the script has ended")


def _number(loss: Any) -> float | None:
    if isinstance(loss, torch.Tensor):
        loss = loss.detach()
    return None if loss is None else float(loss)
