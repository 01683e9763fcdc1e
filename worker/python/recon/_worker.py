"""A worker for any framework: named arrays in, gradients out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recon import _core
from recon._environment import say_whose_job
from recon._leases import Leases, metric_sums, policy_settings

DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64"}


class Worker:
    """One worker of a job.

    Arguments:
        parameters: initial values by name: NumPy arrays, or whatever has ``__array__`` or ``__dlpack__``. All
            workers name the same tensors with the same shapes. The job keeps them in float32. Where it has begun
            already, its own values count.
        samples: number of training samples; each is computed once in each pass, by whichever worker.
        batch: samples of a batch.
        epochs: passes over the data.
        optimizer: `recon.SGD`, `recon.Adam` or `recon.AdamW`: what the server does with gradients.
        evaluate: called after each pass, by one worker: ``evaluate(parameters)`` returns
            ``{"loss": (sum, samples), "accuracy": (correct, samples), ...}``.
        groups: tensor name to group name, for codecs and policies of groups; "default" otherwise.
        shuffle: each pass in an order of its own, the same on every worker, by the job's seed.
        fingerprint: says which data the indices are of; a worker that has another one is refused.
        job_settings: flags of recon-server that the script proposes, ``{"sync": "asp", "seed": 7}``. Without "sync"
            the job is synchronous ("bsp").
        **settings: flags of recon-worker, with underscores: ``server="host:7070"``, ``codec="topk:0.01"``...
            The environment's ``RECON_SERVER`` and the like count where nothing is given.

    Raises `Refused` if the job is another one, `JobLost` if there is no server.

    Threads: all of it on one thread.
    """

    def __init__(self, parameters: Mapping[str, Any], *, samples: int, batch: int = 64, epochs: int = 1,
                 optimizer: Any, evaluate: Callable[[dict[str, np.ndarray]], dict[str, Any]] | None = None,
                 groups: Mapping[str, str] | None = None, shuffle: bool = True, model: str = "python", fingerprint: str = "",
                 job_settings: Mapping[str, Any] | None = None, **settings: Any) -> None:
        arrays = {name: np.asarray(value) for name, value in parameters.items()}
        for name, array in arrays.items():
            if array.dtype.name not in DTYPES:
                raise TypeError(f"parameter {name} is {array.dtype.name}, expected one of {', '.join(DTYPES)}")
        tensors = [(name, list(array.shape), (groups or {}).get(name, "default"), False, DTYPES[array.dtype.name])
                   for name, array in arrays.items()]
        proposed = optimizer.settings() + [("batch", str(batch)), ("data-epochs", str(epochs))]
        proposed += policy_settings(dict(job_settings or {}), "bsp", samples, batch) + flags_of(job_settings or {})
        self._initial = arrays
        self._evaluate = evaluate
        self._core = _core.Worker(flags_of(settings), model, tensors, [], samples, 1 if evaluate else 0, proposed,
                                  fingerprint)
        say_whose_job(self._core, settings)
        self._shapes = {name: array.shape for name, array in arrays.items()}
        self._placement = {name: (offset, size) for name, offset, size in self._core.placement()}
        seed = self._core.job()["seed"]
        identity = np.arange(samples, dtype=np.uint32)
        self._leases = Leases(self._core, (lambda epoch: _core.order(samples, seed, epoch)) if shuffle
                              else lambda epoch: identity, samples)
        self._batch = None
        self._began = 0.0

    @property
    def name(self) -> str:
        """As `reconctl status` shows it."""
        return self._core.name

    def batches(self) -> Iterator[np.ndarray]:
        """Indices of the samples of each batch, until the job is done; each wants one `push`."""
        while not self._leases.finished:
            batch = self._leases.take()
            if batch is None:
                self._serve()
                continue
            if not self._leases.begin(batch):
                continue
            self._batch, self._began = batch, time.monotonic()
            yield np.asarray(batch.indices)
            if self._batch is not None:
                self._core.drop()
                self._leases.close(self._batch)
                self._batch = None
        self._core.pull()

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters that the batch is to be computed from: read-only views of shape and float32."""
        return self._named(self._core.parameters())

    def push(self, gradients: Mapping[str, Any], loss: float | None = None, lr: float | None = None) -> None:
        """The gradient of the mean loss over the batch; names that are left out have 0.

        ``lr`` is the learning rate that the update goes by, in place of the optimizer's.
        """
        if self._batch is None:
            raise RuntimeError("push() without a batch: it goes into `for indices in worker.batches()`, once")
        views = self._named(self._core.gradient())
        unknown = set(gradients) - set(views)
        if unknown:
            raise KeyError(f"no parameter is named {', '.join(sorted(unknown))}")
        for name, view in views.items():
            if name not in gradients:
                view[...] = 0
                continue
            gradient = np.asarray(gradients[name])
            if gradient.shape != view.shape:
                raise ValueError(f"the gradient of {name} has shape {gradient.shape}, expected {view.shape}")
            view[...] = gradient
        batch, self._batch = self._batch, None
        rates = [] if lr is None else [float(lr)] * len(self._core.groups)
        self._core.end(len(batch.indices), time.monotonic() - self._began, None if loss is None else float(loss),
                       rates)
        self._leases.close(batch)

    def leave(self) -> None:
        """Leaves the job: what is under way is finished first."""
        self._core.leave(self._leases.finished)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _named(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        named = {}
        for name, shape in self._shapes.items():
            offset, size = self._placement[name]
            named[name] = flat[offset:offset + size].reshape(shape)
        return named

    def _serve(self) -> None:
        if not self._leases.asked:
            self._leases.rest()
            return
        kind, lease = self._leases.asked.popleft()
        if kind == "initial_values":
            flat = np.empty(self._core.size, np.float32)
            for name, view in self._named(flat).items():
                view[...] = self._initial[name]
            self._core.send_initial_values(flat)
            return
        self._core.begin_evaluation()
        self._core.pause()
        try:
            assert self._evaluate is not None
            sums = metric_sums(self._evaluate(self.parameters()))
        except BaseException:
            self._core.abandon(lease)
            raise
        finally:
            self._core.resume()
        self._core.end_evaluation(lease, sums)


def flags_of(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keyword arguments as flags: ``pull_codec="fp16"`` is ``--pull-codec fp16``; a list gives a flag more than once."""
    flags = []
    for name, value in settings.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            text = str(one).lower() if isinstance(one, bool) else str(one)
            flags.append((name.replace("_", "-"), text))
    return flags
