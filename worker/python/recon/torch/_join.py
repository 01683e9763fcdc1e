"""A model and its optimizer as a worker of a job."""

from __future__ import annotations

import atexit
import os
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from recon import _core
from recon._environment import say_whose_job
from recon._leases import Batch, JobDone
from recon._worker import flags_of
from recon.torch._data import DataLoader
from recon.torch._edits import Edits
from recon.torch._evaluation import evaluate_for
from recon.torch._guards import Guards, refuse_state
from recon.torch._loop import ALONE_TEXT, KEPT_TEXT, JobLoader
from recon.torch._members import Members
from recon.torch._optimizers import all_optimizers, is_of_the_server, one_optimizer, settings_of, unwrapped
from recon.torch._overlap import Overlap, outside_compiled
from recon.torch._schedule import Progress, follow
from recon.torch._share import Share
from recon.torch._state import copy_state, remember
from recon.torch._tensors import Tensors, number_of, plain_module
from recon.torch._workers_step import WorkersStepJob

# Batches between two pushes, with an optimizer that steps on the worker, where the script says nothing.
LOCAL_STEPS = 8
# The processes, this one and those it was forked from, that have joined a job.
_joined: list[int] = []


def join(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any, *,
         evaluate: Callable[..., dict[str, Any]] | None = None, epochs: int = 1, scheduler: Any = None,
         overlap: bool | None = None, group: torch.distributed.ProcessGroup | None = None,
         optimizer_on: Literal["server", "workers"] | None = None, also: dict[str, Any] | None = None,
         job_settings: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Makes this process a worker of the job: `loader` gives it its share of the data.

    In a synchronous job gradients are the mean over the step's workers after ``backward()``, and the script's own optimizers step
    on every worker, as with DistributedDataParallel. See OPTIMIZER.md for that, and for the optimizer on the server.

    Arguments:
        model: its parameters that the optimizers have are the job's, and so are its buffers, such as BatchNorm's running means.
            Where the job has begun, the job's values replace what the model has.
        optimizer: any of torch's, or a list of several. On the server: one SGD, Adam or AdamW, which the server computes;
            any other steps on the worker, and how far the parameters have moved is pushed: local steps, ``{"sync": "local:8"}``
            where `job_settings` says nothing.
        loader: a `recon.torch.DataLoader`.
        evaluate: ``evaluate(model)``, called after each pass by one worker, without gradients and in ``eval()``:
            ``{"loss": (sum, samples), "accuracy": (correct, samples), ...}``.
        epochs: passes over the data.
        scheduler: a learning-rate scheduler that the script steps after each batch, or after each ``step()`` of several:
            it keeps to the job's progress, not to this worker's, so its horizon is that of one process.
        overlap: with the optimizer on the server, whether gradients are pushed while backward still runs. None: once a few
            steps have shown that the script does not change them before ``step()``, by clipping, unscaling or accumulating.
        group: the processes of torch.distributed, over NCCL or gloo, that are one worker together, such as those of one
            machine: each calls this with the same arguments, goes through the loader together with the others, and
            computes its share of every batch. After a backward each has the gradient of the whole batch; the first one
            pushes it, and the others get the parameters from it. If one dies, the others end with an error: start them
            again together, as torchrun does. A share may be one sample.
        optimizer_on: "workers" or "server". None: on workers in a synchronous job; on the server for other policies (`sync` in
            `job_settings`), and with `group`, ``overlap=True``, an optimizer in `job_settings`, or a loader of files.
        also: with the optimizer on workers, what else belongs to the state that a newcomer gets, by name: things with
            ``state_dict`` and ``load_state_dict``, such as a GradScaler or an average of the model. `scheduler` does anyway.
        job_settings: flags of recon-server that the script proposes, ``{"sync": "ssp:4", "seed": 7}``. Without "sync"
            the job is synchronous ("bsp"): each step is the mean over all workers that are there.
        **settings: flags of recon-worker: ``server="host:7070"``, ``codec="topk:0.01"``...

    Raises `recon.Refused`, with the difference, if the job has another model, other data or other settings;
    `recon.JobLost` if there is no server; TypeError for a model or an optimizer that the server cannot hold, ValueError
    for an optimizer that brings state along. What the script does later and the server would not know of (it edits
    parameters, sets momentum, freezes a layer) is a RuntimeError, or a warning, at the step where it happens.
    """
    if torch.utils.data.get_worker_info() is not None or _in_child():
        raise RuntimeError("join() in a child process of the script, which a DataLoader or multiprocessing started: "
                           "put the script's body below `if __name__ == '__main__':`")
    if _joined and os.getpid() not in _joined:
        raise RuntimeError(f"join() in process {os.getpid()}, a fork of {_joined[-1]}, which has joined: their connections "
                           "would be one. Fork first, or start a process anew")
    if not isinstance(loader, JobLoader):
        raise TypeError(f"join() was given a {type(loader).__module__}.{type(loader).__name__} as loader, expected a "
                        "recon.torch.DataLoader: it takes the same arguments")
    if loader._job is not None:
        raise RuntimeError("this loader has a job already: join once, after model and optimizer exist")
    on_workers = steps_on_workers(optimizer_on, job_settings or {}) and (
        optimizer_on is not None or (group is None and not overlap and isinstance(loader, DataLoader)))
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("join() was given a DistributedDataParallel: each worker of a job is one process, and the server is "
                        "what adds their gradients. Give the module itself, and start workers with `recon run`; processes "
                        "that are to be one worker say group=")
    if on_workers:
        if group is not None or overlap:
            raise ValueError("optimizer_on='workers' does not go with group= and overlap=True")
        if not isinstance(loader, DataLoader):
            raise TypeError(f"optimizer_on='workers' goes with a recon.torch.DataLoader, not with a {type(loader).__name__}")
        stepping = WorkersStepJob(model, all_optimizers(optimizer), loader, evaluate, epochs,
                                  None if scheduler is None else unwrapped(scheduler), also or {}, job_settings or {}, settings)
        loader._job = stepping
        remember(model, stepping)
        if os.getpid() not in _joined:
            _joined.append(os.getpid())
        return stepping
    if also:
        raise ValueError("also= is for the optimizer on workers: the server's state has the optimizer's alone")
    optimizer = unwrapped(one_optimizer(optimizer, model))
    if hasattr(optimizer, "_recon_job"):
        raise RuntimeError("this optimizer has a job already: join once")
    if group is not None and not isinstance(loader, DataLoader):
        raise TypeError(f"group= goes with a recon.torch.DataLoader, not with a {type(loader).__name__}: its batches are cut "
                        "by their indices")
    job = Job(model, optimizer, loader, evaluate, epochs, scheduler, overlap, Members(group, model) if group is not None else None,
              job_settings or {}, settings)
    loader._job = job
    remember(model, job)
    if os.getpid() not in _joined:
        _joined.append(os.getpid())
    return job


def steps_on_workers(optimizer_on: str | None, job_settings: dict[str, Any]) -> bool:
    """Whether workers have the optimizer in a job with these settings, as `join` decides where nothing else speaks against it."""
    if optimizer_on not in (None, "server", "workers"):
        raise ValueError(f"optimizer_on is {optimizer_on!r}, expected 'server' or 'workers'")
    if optimizer_on is not None:
        return optimizer_on == "workers"
    return str(job_settings.get("sync", "bsp")) == "bsp" and "optimizer" not in job_settings


def _in_child() -> bool:
    import multiprocessing

    return multiprocessing.parent_process() is not None


class Job(Share):
    """This process' part in a job; `join` makes it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any,
                 evaluate: Callable[..., dict[str, Any]] | None, epochs: int, scheduler: Any, overlap: bool | None,
                 members: Members | None, job_settings: dict[str, Any], settings: dict[str, Any]) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.loss: float | None = None
        self._evaluate = evaluate
        self._members = members  # Of this worker, where it is several processes.
        self._tensors = Tensors(model, optimizer)
        # Where the server does not compute the optimizer, it steps here, and how far it has moved is pushed.
        self._own_step: Callable[..., Any] | None = None
        if is_of_the_server(optimizer):
            refuse_state(optimizer)
            proposed = settings_of(optimizer, self._tensors.group_names)
            policy = "bsp"
        else:
            self._own_step = optimizer.step
            proposed = [("optimizer", "sgd")]
            policy = f"local:{LOCAL_STEPS}"
        proposed += loader.settings(job_settings, policy)
        proposed += [("batch", str(loader.batch_size)), ("data-epochs", str(epochs))] + flags_of(job_settings)
        # Heartbeats say how busy and how full it is.
        gpu = next((parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"), None)
        if gpu is not None:
            settings = {"device": f"cuda:{gpu.index or 0}", **settings}

        if members is not None:
            if overlap:
                raise ValueError("overlap=True does not go with group=: gradients are pushed when all processes have theirs")
            members.agree(model=self._tensors.specs, data=(loader.samples, loader.fingerprint), batch_size=loader.batch_size,
                          optimizer=proposed, loads=(loader._loader.num_workers, loader._loader.prefetch_factor))

        def connect() -> Any:
            return _core.Worker(flags_of(settings), type(plain_module(model)).__name__, self._tensors.specs, self._tensors.aliases,
                                loader.samples, 1 if evaluate else 0, proposed, loader.fingerprint)
        self._core = connect() if members is None else members.core(connect)
        self._name = self._core.name
        say_whose_job(self._core, settings, f" (torch's seed is {torch.initial_seed()})")
        self.seed = int(self._core.job()["seed"])
        self._share_out(loader.share(self._core), self._tensors.trained)
        self._tensors.place(self._core)
        self._overlap = Overlap(self._core, self._tensors.trained, self._tensors.places_of_parameters(),
                                lambda: self._tensors.rates(optimizer), lambda: self._weight,
                                False if self._own_step or members else overlap)
        self._edits = Edits(self._tensors, type(plain_module(model)).__name__)
        self._guards = Guards(optimizer, self._tensors, self._closers if members is None else None) if (
            self._own_step is None) else None
        self._began = 0.0
        self._weight = 0  # Of the next push; 0: its samples.
        self._left = False
        self._warned = False  # That the job is done, and step() is plain.
        self._last_step = 0
        self._progress = Progress(len(loader))
        self._pid = os.getpid()
        if members is not None:
            members.exchange(self._tensors.trained)
        self._take_over(optimizer)
        if scheduler is not None:
            self.follow(scheduler)
        atexit.register(self.leave)

    # What the loader asks.

    @property
    def finished(self) -> bool:
        """The job is done: there are no more batches."""
        self._look()
        if self._leases.finished and not self._left:
            self._let_go()
            self._end(finished=True)
        return self._left

    def between_batches(self) -> None:
        """Does what the server has asked for, where no batch is under way."""
        self._look()
        with self._lock:
            while self._leases.asked and self.may_interrupt():
                kind, lease = self._leases.asked.popleft()
                if kind == "initial_values":
                    self._core.send_initial_values(self._tensors.values())
                else:
                    self._evaluate_for(lease)
                self._enter_next()

    # What the script may ask.

    def report(self, loss: Any) -> None:
        """The batch's mean loss, for `reconctl status`; a number or a tensor, which is read at ``step()``."""
        self.loss = loss

    def weigh(self, count: Any) -> None:
        """How much this batch counts in the step's mean over workers, in place of its samples: of tokens, say, where the loss
        is a mean over these. Between a batch and its backward; what is said of batches that are accumulated is added up."""
        if int(count) < 0:
            raise ValueError(f"weigh({int(count)}), expected 0 or more")
        if not self._unstepped or self._overlap.pushing:
            raise RuntimeError("weigh() goes between a batch and its backward(): the gradient is on its way")
        self._weight += max(1, int(count))

    @property
    def name(self) -> str:
        """As `reconctl status` shows it."""
        return self._name

    @property
    def step(self) -> int:
        """Number of this worker's last push; in a synchronous job, of the step that it was part of."""
        return self._last_step if self._left else self._core.step

    @property
    def overlaps(self) -> bool:
        """Whether gradients are pushed while backward runs."""
        return self._overlap.on

    def indices(self) -> list[int]:
        """The samples of the batches since the last ``step()``, of all processes of a group; none where workers share
        files."""
        return [int(index) for batch in self._unstepped for index in batch.indices]

    def pull(self) -> None:
        """Gives the model the job's parameters as they are now, with all that this worker has pushed."""
        if self._unstepped:
            raise RuntimeError("pull() between a batch and its step(): its gradient would be of other parameters")
        self._look()
        self._core.begin_evaluation()
        self._load()

    def state_dict(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """As `recon.torch.state_dict` of the job's model; or of `model`, which is in it, or which it is in."""
        model = self.model if model is None else model
        if self._left and not self._leases.finished:
            raise RuntimeError("state_dict() of a worker that has left before the job was done")
        if self._unstepped:
            raise RuntimeError("state_dict() between a batch and its step(): call it after step()")
        if self._left:
            return copy_state(model, [])
        self._look()
        self._core.begin_evaluation()
        return copy_state(model, self._tensors.values_in(self._core.parameters()))

    def follow(self, scheduler: Any) -> None:
        """Keeps a scheduler that is stepped after each batch, or after each ``step()``, to the job's progress, as `join`
        does with its own: for one that is made later."""
        follow(unwrapped(scheduler), self._progress)

    def leave(self) -> None:
        """Leaves the job, if the script ends before it is done: what is under way is finished first."""
        if not self._left and os.getpid() == self._pid:
            self._end(finished=False)

    # The rest.

    def _enter(self, batch: Batch, first: bool) -> None:
        if first:
            self._began = time.monotonic()
            self._load()
        if self._members is not None:
            self._members.begin(batch)
        self._overlap.begin(batch.samples, accumulating=not first)

    def _drop_begun(self) -> None:
        if not self._left:
            self._overlap.stop()
        super()._drop_begun()

    def _load(self) -> None:
        """Gives the model the job's parameters."""
        if self._tensors.load(self._core):
            self._edits.given()

    def _look(self, beginning: bool = False) -> None:
        """Before the job gives the next parameters: the script has not changed those that it had."""
        if self._left:
            return
        self._edits.look()
        if beginning:
            self._edits.look_at_beginning()

    def _closers(self) -> int:
        """How many workers close a step together."""
        job = self._core.job()
        return int(job["workers"]) if job["bound"] == 0 else 1

    def _end(self, finished: bool) -> None:
        self._last_step = self._core.step
        self._left = True
        self._handed.forget()
        if self._members is not None:
            self._members.stop()
        atexit.unregister(self.leave)
        if self._guards is not None:
            self._guards.end()
        try:
            if finished:
                self._core.pull()
                self._load()
            self._tensors.detach()
            self._core.leave(finished)
        finally:
            self._core.close("the script has ended")

    def _take_over(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer._recon_job = self
        self._plain_step = optimizer.step
        # Fused optimizers divide by the scale themselves, and would be handed scaled gradients.
        optimizer._step_supports_amp_scaling = False

        def step(self_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            self_._opt_called = True
            with self._lock:
                return self._step_alone(closure) if self._left else self._step(closure)

        # An optimizer that steps here calls the script's hooks itself.
        hooked = outside_compiled(step if self._own_step is not None else torch.optim.Optimizer.profile_hook_step(step))
        # Schedulers look for it, and would warn of a step() that they know nothing of.
        hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = types.MethodType(hooked, optimizer)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not len(self._handed) and not ((closure is not None or self._handed.backwards) and self._claim()):
            raise RuntimeError("step() without a batch of the loader: each step() pushes what the batches since the "
                               "last one gave" + KEPT_TEXT * self.loader.keeps_batches() + ALONE_TEXT * self.loader.went_alone)
        result = None
        if closure is not None and self._own_step is not None and self._members is not None:
            raise TypeError(f"step(closure) of {type(self.optimizer).__name__} does not go with group=: each process has the loss of "
                            "its own part, by which it may call the closure more or less often than others")
        if closure is not None and self._own_step is None:
            with torch.enable_grad():
                result = self.loss = closure()
            closure = None
        if closure is None and not self._tensors.have_gradients():
            raise RuntimeError(f"step() without backward(): no parameter of {type(self.model).__name__} has a gradient")
        self._tensors.check(self.optimizer)
        self._edits.before_push()
        if self._guards is not None:
            self._guards.at_step()
        return self._push(closure, result)

    def _push(self, closure: Callable[[], Any] | None, result: Any) -> Any:
        batches, passed = self._take_for_step()
        if not batches:
            self._drop_begun()
            self._close(passed)
            self._enter_next()
            return result
        samples = sum(batch.samples for batch in batches)
        pushed = self._overlap.take()
        place, rates = self._core.gradient(), []
        if self._members is not None:
            self._members.mean_buffers(self._tensors.buffers, batches)
        if self._own_step is not None:
            # An optimizer that steps here calls the closure as often as it likes.
            if closure is not None:
                result = self.loss = self._own_step(closure)
            else:
                self._own_step()
            self._tensors.store_values(place)
        else:
            self._tensors.store(place, pushed)
            rates = self._overlap.rates(self._tensors.rates(self.optimizer))
        loss, self.loss = self.loss, None
        weight, self._weight = self._weight, 0
        self._core.end(samples, time.monotonic() - self._began, number_of(loss), rates, self._own_step is not None, weight)
        self._close(passed + batches)
        # What the script reads from here on is the job's, of a synchronous job with this step in it.
        if self._core.settle():
            self._load()
        self._edits.after_step()
        self._handed.forget_begun()
        self._enter_next()
        if not self._unstepped:
            self.loader.after_step()
        return result

    def _step_alone(self, closure: Callable[[], Any] | None) -> Any:
        """After the job: the optimizer's own, where a backward came after it. What was accumulated before is left alone."""
        if self.loader.keeps_batches():
            raise JobDone("the job is done, and this is a step() on batches of its last pass" + KEPT_TEXT)
        if closure is None and not self._handed.backwards:
            return None
        if not self._warned:
            self._warned = self._progress.over = True
            warnings.warn(f"the job is done, after {self.epochs} passes: from here on step() is the optimizer's own, and "
                          "trains this process' model alone", RuntimeWarning,
                          stacklevel=3)
        return self._plain_step() if closure is None else self._plain_step(closure)

    def _close(self, batches: Sequence[Batch]) -> None:
        """They are pushed, or nothing comes of them."""
        if batches and not self._left:
            job, samples = self._core.job(), self.loader.samples
            self._workers = max(1, int(job["workers"]))
            before = (batches[0].order_key - batches[0].data_epoch * samples) * len(self.loader) // samples
            self._progress.advance(job, batches[0].data_epoch, before, len(batches), self.loader.batch_size)
        super()._close(batches)

    def _evaluate_for(self, lease: int) -> None:
        assert self._evaluate is not None
        self._core.begin_evaluation()
        self._load()
        evaluate_for(self._core, self.model, self._evaluate, lease)
