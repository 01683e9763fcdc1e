"""A DataLoader whose batches come from the server's leases."""

from __future__ import annotations

import collections
import multiprocessing
import multiprocessing.context
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from recon import _core
from recon._leases import Batch, Leases, policy_settings
from recon.torch._fingerprint import fingerprint as fingerprint_of

if TYPE_CHECKING:
    from recon.torch._join import Job


class _Collate:
    """Collates samples as the user's function does; of no samples it makes None: there was no work."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        return self.collate(samples) if samples else None


class Begin:
    """What a process that loads data begins with: the user's function. Then it ends if the worker is dead already: torch
    watches the parent that it finds from there on, which would be another process, for ever, with the worker's sockets
    open."""

    def __init__(self, function: Callable[[int], Any] | None) -> None:
        self.function = function

    def __call__(self, number: int) -> None:
        if self.function is not None:
            self.function(number)
        process, worker = multiprocessing.current_process(), multiprocessing.parent_process()
        # A fork server is the parent of what it forks.
        if worker is not None and not isinstance(process, multiprocessing.context.ForkServerProcess):
            if os.getppid() != worker.pid:
                os._exit(1)


class _Samples(torch.utils.data.Dataset):
    """The user's data set; nothing of it is asked for no samples."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if not indices:
            return []
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]


class _BatchSampler(torch.utils.data.Sampler):
    """Indices of the next batch; none where there is no work now, so that it never waits."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.taken: collections.deque[Batch | None] = collections.deque()

    def __iter__(self) -> Iterator[list[int]]:
        assert self.job is not None
        while True:
            batch = self.job.take()
            self.taken.append(batch)
            yield [] if batch is None else [int(index) for index in self.job.samples_of(batch)]


class JobLoader:
    """What loads the batches of one job; `join` takes any, and gives it its job.

    Of its kinds each has ``batch_size``; ``samples``, those of a pass over all workers; a ``fingerprint`` of the data;
    ``settings()`` and ``share()``; ``_load()`` and ``_next()``.
    """

    # For loops that take a pass without a batch as the end of all: the first is of the pass that the job is in.
    skips_done_passes = False
    batch_size: int
    samples: int
    fingerprint: str

    def __init__(self) -> None:
        self._job: Job | None = None
        self._pass = 0
        self._held: tuple[Batch, Any] | None = None
        self._items: Iterator[Any] | None = None
        self._last: Any = None  # What was yielded last.

    @property
    def job(self) -> Job:
        """What `join` made of it."""
        if self._job is None:
            raise RuntimeError("the loader has no job yet: call recon.torch.join(model, optimizer, loader) first")
        return self._job

    def settings(self, job_settings: dict[str, Any], policy: str) -> list[tuple[str, str]]:
        """How workers agree and share the data, where the script does not say: by `policy`."""
        raise NotImplementedError

    def share(self, core: Any) -> Leases:
        """This worker's share of the job's data."""
        raise NotImplementedError

    def _load(self) -> Iterator[Any]:
        """What the sampler has asked for, in its order, without an end."""
        raise NotImplementedError

    def _next(self, job: Job) -> tuple[Batch, Any] | None:
        """The next batch, or None if there is none now."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        job = self.job
        data_epoch, self._pass = self._pass, self._pass + 1
        if self._items is None:
            self._items = self._load()
        yielded = False
        while not job.finished:
            if not job.enter(data_epoch):
                return
            owes = job.owes_step(None if self._held is None else self._held[0], data_epoch)
            if owes is None and (yielded or not self.skips_done_passes):
                return
            if owes:
                yielded = True
                yield self._filler(job)
                continue
            if self._held is None:
                self._held = self._next(job)
                continue
            batch, data = self._held
            if batch.data_epoch > data_epoch:
                if yielded or not self.skips_done_passes:
                    return
                data_epoch, self._pass = batch.data_epoch, batch.data_epoch + 1
            self._held = None
            if job.begin(batch):
                yielded = True
                self._last = data
                yield data

    def _filler(self, job: Any) -> Any:
        """A batch that does not count."""
        if self._last is None:
            self._last = self._held[1] if self._held is not None else self._spare()
        return self._last

    def _spare(self) -> Any:
        """Any batch of the data."""
        raise NotImplementedError

    def ends_pass(self) -> bool:
        """Whether the loop's pass is over, for those who must know at its last batch. After a ``step()``; waits for the
        next batch, which it keeps for the loop."""
        while self._held is None and not self.job.finished:
            self._held = self._next(self.job)
        return self._held is None or self._held[0].data_epoch >= self._pass

    def finish(self) -> bool:
        """Whether the job is done, for loops that count batches and do not see the loader's end. Waits until it is, or
        until there are batches again; evaluates meanwhile, if this worker is asked to."""
        if self._items is None:
            self._items = self._load()
        while not self.job.finished:
            if self._held is not None:
                return False
            self._held = self._next(self.job)
        return True


class DataLoader(JobLoader):
    """In place of ``torch.utils.data.DataLoader``: the samples of each pass are shared by all workers of the job,
    each computed once, whoever dies.

    Arguments are those of torch's, but for ``sampler`` they mean the same on every worker:
        shuffle: each pass in an order of its own, by the job's seed. On by default, as with DistributedSampler.
        sampler: its order is kept: ``list(sampler)`` of a pass, after ``sampler.set_epoch(pass)`` where it has that.
            It must be the same on every worker. What it draws from torch's random numbers is: they, and its own
            ``generator``, begin by the job's seed and the pass.
        fingerprint: says which data it is: a worker that has another is refused. By default of data in memory (tensors,
            arrays, subsets of them) and of Hugging Face's; "" for none.
    ``batch_sampler``, ``drop_last`` and iterable data sets are not taken.

    A ``for`` loop over it ends with the pass. Loop number N (from 0) is of pass N: a worker that comes later goes
    through the passes that are done without a batch, so that whatever the script does once a pass agrees.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = True, sampler: Any = None, *,
                 fingerprint: str | None = None, collate_fn: Callable[[list[Any]], Any] | None = None, **options: Any) -> None:
        for name in ("batch_sampler", "drop_last"):
            if options.pop(name, None):
                raise TypeError(f"recon's DataLoader takes no {name}: the server says which samples make a batch")
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise TypeError("an iterable data set has no indices to share: give one with __getitem__ and __len__, or "
                            "its files to recon.torch.leased")
        if batch_size is None or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected 1 or more")
        if not hasattr(dataset, "__len__"):
            raise TypeError(f"{type(dataset).__name__} has no __len__: the server shares samples by their indices")
        if len(dataset) == 0:
            raise ValueError(f"the data set, a {type(dataset).__name__}, has no samples")
        if not options.get("in_order", True):
            raise TypeError("recon's DataLoader takes no in_order=False: the server knows batches by their order")
        super().__init__()
        self.dataset = dataset
        self.samples = len(dataset)
        self.fingerprint = fingerprint_of(dataset) if fingerprint is None else fingerprint
        self.batch_size = int(batch_size)
        self.sampler = sampler
        self.shuffle = shuffle
        self._batches = _BatchSampler()
        self._order: tuple[int, Sequence[int]] = (-1, [])
        options["worker_init_fn"] = Begin(options.pop("worker_init_fn", None))
        collate = collate_fn or torch.utils.data.default_collate
        self._loader = torch.utils.data.DataLoader(_Samples(dataset), batch_sampler=self._batches,
                                                   collate_fn=_Collate(collate), **options)

    def __len__(self) -> int:
        """Batches of a pass, over all workers."""
        return -(-len(self.dataset) // self.batch_size)

    def order(self, data_epoch: int) -> Sequence[int]:
        """The order of all samples in a pass."""
        if self.sampler is not None:
            if self._order[0] != data_epoch:
                self._order = (data_epoch, self._draw(data_epoch))
            return self._order[1]
        if not self.shuffle:
            return range(len(self.dataset))
        return _core.order(len(self.dataset), self.job.seed, data_epoch)

    def _draw(self, data_epoch: int) -> Sequence[int]:
        seed = (self.job.seed + data_epoch) % (1 << 63)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(data_epoch)
        if isinstance(getattr(self.sampler, "generator", None), torch.Generator):
            self.sampler.generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            order = [int(index) for index in self.sampler]
        samples = len(self.dataset)
        if len(order) != samples:
            raise ValueError(f"the sampler gave {len(order)} indices in pass {data_epoch}, the data set has {samples} "
                             "samples: each is computed once")
        if min(order) < 0 or max(order) >= samples:
            raise ValueError(f"the sampler gave indices from {min(order)} to {max(order)} in pass {data_epoch}, the "
                             f"data set's go from 0 to {samples - 1}")
        return order

    def settings(self, job_settings: dict[str, Any], policy: str) -> list[tuple[str, str]]:
        return policy_settings(job_settings, policy, self.samples, self.batch_size)

    def share(self, core: Any) -> Leases:
        return Leases(core, self.order, self.samples)

    def _spare(self) -> Any:
        samples = range(min(self.batch_size, self.samples))
        return self._loader.collate_fn([self.dataset[index] for index in samples])

    def _load(self) -> Iterator[Any]:
        self._batches.job = self.job
        return iter(self._loader)

    def _next(self, job: Job) -> tuple[Batch, Any] | None:
        assert self._items is not None
        job.between_batches()
        data = next(self._items)
        batch = self._batches.taken.popleft()
        if batch is not None:
            return batch, data
        if not any(other is not None for other in self._batches.taken):
            job.rest()
        return None
