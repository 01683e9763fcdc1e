"""A DataLoader whose batches come from the server's leases."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import multiprocessing.context
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from recon import _core
from recon._leases import SPLIT_BATCHES_MIN, SPLITS_MIN, Batch, Leases, policy_settings
from recon.torch._fingerprint import fingerprint as fingerprint_of
from recon.torch._loop import JobLoader, Loop, PassOver

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
    """Indices of the next batch; none where there is no work now, so that it never waits. It ends with its pass."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.loop: Loop | None = None
        self.taken: collections.deque[Batch | None] = collections.deque()

    def __iter__(self) -> Iterator[list[int]]:
        assert self.job is not None and self.loop is not None
        return self._of(self.job, self.loop, self.taken)

    @staticmethod
    def _of(job: Job, loop: Loop, taken: collections.deque[Batch | None]) -> Iterator[list[int]]:
        while True:
            try:
                batch = job.take(loop)
            except PassOver:
                return
            taken.append(batch)
            yield [] if batch is None else [int(index) for index in job.samples_of(batch)]


class _Order(torch.utils.data.Sampler):
    """What `DataLoader.sampler` is where the script has none: the order of the pass, which the job decides."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return iter([int(index) for index in self._loader.order(max(0, self._loader._pass - 1))])

    def __len__(self) -> int:
        return self._loader.samples

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the pass is the job's."""


class _BatchLeases(Leases):
    """Of batches that a sampler of the script makes: each counts as one sample."""

    def _cut(self, job: dict[str, Any], lease: int, data_epoch: int, begin: int, end: int, done: int) -> None:
        before = len(self._ready)
        super()._cut(job, lease, data_epoch, begin, end, done)
        for batch in itertools.islice(self._ready, before, None):
            (batch.indices,) = batch.indices
            batch.samples = len(batch.indices)


# What scripts and frameworks read of a loader of torch, and ours has from the one that it holds.
_OF_TORCH = ("num_workers", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers",
             "generator", "pin_memory_device")


def of_torch(loader: Any, name: str) -> Any:
    """An attribute of a loader that its torch's has."""
    if name in _OF_TORCH and "_loader" in vars(loader):
        return getattr(loader._loader, name)
    raise AttributeError(f"{type(loader).__name__} has no {name}")


class DataLoader(JobLoader):
    """In place of ``torch.utils.data.DataLoader``: the samples of each pass are shared by all workers of the job,
    each computed once, whoever dies.

    Arguments are those of torch's, but for these they mean the same on every worker:
        shuffle: each pass in an order of its own, by the job's seed. On by default, as with DistributedSampler.
        sampler: its order is kept: ``list(sampler)`` of a pass, after ``sampler.set_epoch(pass)`` where it has that. A
            pass has ``len(sampler)`` samples. It must be the same on every worker. What it draws from torch's random
            numbers is: they, and its own ``generator``, begin by the job's seed and the pass.
        batch_sampler: likewise, of batches, of which each pass has ``len(batch_sampler)``; the job counts each as one
            sample, and ``batch_size`` is 1.
        drop_last: a pass leaves out what does not make a whole batch at its end; that is once, over all workers.
        fingerprint: says which data it is: a worker that has another is refused. By default of data in memory (tensors,
            arrays, subsets of them) and of Hugging Face's; "" for none.
        reseed: whether random numbers of this process (Python's, NumPy's, torch's and those of ``generator``) begin anew
            with this worker's first batch, so that no two workers draw the same. Who begins the job keeps the script's.
    Iterable data sets are not taken.

    A ``for`` loop over it ends with the pass. Loop number N (from 0) is of pass N: a worker that comes later goes
    through the passes that are done without a batch, so that whatever the script does once a pass agrees. Loops that train
    nothing go through all of the data in this process alone: those without gradients, those with the model in ``eval()``,
    and after the job's end those that have not trained in it; one that has gets `recon.JobDone`. BATCHES.md has more.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = True, sampler: Any = None, *,
                 batch_sampler: Any = None, drop_last: bool = False, fingerprint: str | None = None, reseed: bool = True,
                 collate_fn: Callable[[list[Any]], Any] | None = None, **options: Any) -> None:
        if batch_sampler is not None:
            if batch_size != 1 or sampler is not None or drop_last:
                raise ValueError("batch_sampler goes without batch_size, sampler and drop_last: it makes the batches")
            if type(batch_sampler) is torch.utils.data.BatchSampler:
                sampler, batch_size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
                shuffle, sampler, batch_sampler = _known(sampler, dataset)
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
        for name, one in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            _check_sampler(name, one)
        super().__init__(reseed)
        self.dataset = dataset
        self.batch_size = int(batch_size)
        self.drop_last = bool(drop_last)
        self.shuffle = shuffle
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self.samples = self._samples_of_pass()
        self.fingerprint = fingerprint_of(dataset) if fingerprint is None else fingerprint
        self.sampler = _Order(self) if sampler is None else sampler
        self.batch_sampler = batch_sampler or torch.utils.data.BatchSampler(self.sampler, self.batch_size, self.drop_last)
        self.collate_fn = collate_fn or torch.utils.data.default_collate
        self.worker_init_fn = options.get("worker_init_fn")
        self._batches = _BatchSampler()
        self._items: Iterator[Any] | None = None
        self._order: tuple[int, Sequence[Any]] = (-1, [])
        self._alone_options = {name: value for name, value in options.items() if name != "persistent_workers"}
        options["worker_init_fn"] = Begin(options.pop("worker_init_fn", None))
        self._loader = torch.utils.data.DataLoader(_Samples(dataset), batch_sampler=self._batches,
                                                   collate_fn=_Collate(self.collate_fn), **options)

    def __getattr__(self, name: str) -> Any:
        return of_torch(self, name)

    def __len__(self) -> int:
        """Batches of a pass, over all workers."""
        return -(-self.samples // self.batch_size)

    def _samples_of_pass(self) -> int:
        given = self._batch_sampler if self._batch_sampler is not None else self._sampler
        samples = len(self.dataset if given is None else given)
        if samples == 0:
            raise ValueError(f"the {type(given).__name__} gives nothing")
        if not self.drop_last:
            return samples
        if samples < self.batch_size:
            raise ValueError(f"drop_last=True leaves no batch: a pass has {samples} samples, a batch {self.batch_size}")
        return samples - samples % self.batch_size

    def order(self, data_epoch: int) -> Sequence[Any]:
        """The order of all samples in a pass; where the script has a ``batch_sampler``, of all batches."""
        if self._sampler is not None or self._batch_sampler is not None:
            if self._order[0] != data_epoch:
                self._order = (data_epoch, self._draw(data_epoch))
            return self._order[1]
        if not self.shuffle:
            return range(self.samples)
        return _core.order(len(self.dataset), self.job.seed, data_epoch)[:self.samples]

    def _draw(self, data_epoch: int) -> Sequence[Any]:
        given = self._batch_sampler if self._batch_sampler is not None else self._sampler
        seed = (self.job.seed + data_epoch) % (1 << 63)
        for one in (given, getattr(given, "sampler", None)):
            if hasattr(one, "set_epoch"):
                one.set_epoch(data_epoch)
            if isinstance(getattr(one, "generator", None), torch.Generator):
                one.generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if self._batch_sampler is not None:
                order: list[Any] = [[int(index) for index in batch] for batch in given]
            else:
                order = [int(index) for index in given]
        if self._batch_sampler is None:
            self._check_order(data_epoch, len(order), order, "indices")
            return order[:self.samples]
        self._check_order(data_epoch, len(order), [index for batch in order for index in batch], "batches")
        if not all(order):
            raise ValueError(f"the batch_sampler gave an empty batch in pass {data_epoch}")
        return order

    def _check_order(self, data_epoch: int, gave: int, indices: Sequence[int], what: str) -> None:
        expected = self.samples if self._batch_sampler is not None else len(self._sampler)
        if gave != expected:
            raise ValueError(f"the sampler gave {gave} {what} in pass {data_epoch}, its len() was {expected}: every pass has as "
                             "many")
        if min(indices) < 0 or max(indices) >= len(self.dataset):
            raise ValueError(f"the sampler gave indices from {min(indices)} to {max(indices)} in pass {data_epoch}, the "
                             f"data set's go from 0 to {len(self.dataset) - 1}")

    def settings(self, job_settings: dict[str, Any], policy: str) -> list[tuple[str, str]]:
        split = job_settings.get("split_samples")
        if self.drop_last and split is not None and int(split) % self.batch_size != 0:
            raise ValueError(f"split_samples is {split}, a batch has {self.batch_size} samples: with drop_last=True a split has "
                             "whole batches")
        settings = policy_settings(job_settings, policy, self.samples, self.batch_size)
        if self._batch_sampler is None:
            return settings
        batches = max(1, min(SPLIT_BATCHES_MIN, self.samples // SPLITS_MIN))
        return [(name, str(batches) if name == "split-samples" else value) for name, value in settings]

    def share(self, core: Any) -> Leases:
        return (Leases if self._batch_sampler is None else _BatchLeases)(core, self.order, self.samples)

    # Each loop has processes of its own, as with torch's: they see the data set as it is then.

    def _fetch(self, job: Job, loop: Loop) -> tuple[Batch, Any] | None:
        if self._items is None:
            first = job.peek()
            if first is None:
                return None
            if not loop.starts_with(first):
                raise PassOver
            self._seed(job, first.order_key)
            self._batches.job, self._batches.loop, self._batches.taken = job, loop, collections.deque()
            self._items = iter(self._loader)
        try:
            data = next(self._items)
        except StopIteration:
            raise PassOver from None
        batch = self._batches.taken.popleft()
        return None if batch is None else (batch, data)

    def _loads(self) -> bool:
        return self._items is not None and any(batch is not None for batch in self._batches.taken)

    def _close(self) -> None:
        self._items = None
        left = [batch for batch in self._batches.taken if batch is not None]
        self._batches.taken = collections.deque()
        if left and not self.job.finished_or_gone():
            self.job._leases.put_back(left)

    def _put_back(self, batches: Sequence[tuple[Batch, Any]]) -> None:
        self.job._leases.put_back([batch for batch, _ in batches])

    def _claim(self, batch: Batch) -> bool:
        return self.job.peek() is batch and self.job._leases.take() is batch

    def _alone(self, data_epoch: int, without: Sequence[Batch]) -> Iterator[Any]:
        order, first = self.order(data_epoch), data_epoch * self.samples
        gone = {batch.order_key - first + number for batch in without for number in range(
            1 if self._batch_sampler is not None else batch.samples)}
        left = [indices for at, indices in enumerate(order) if at not in gone] if gone else order
        if self._batch_sampler is not None:
            batches: Sequence[Any] = left
        else:
            batches = [[int(index) for index in left[at:at + self.batch_size]] for at in range(0, len(left), self.batch_size)]
        return iter(torch.utils.data.DataLoader(self.dataset, batch_sampler=batches, collate_fn=self.collate_fn,
                                                **self._alone_options))


def _known(sampler: Any, dataset: Any) -> tuple[bool, Any, None]:
    """Whether a sampler of torch's draws all samples, and the sampler if it is another."""
    drawn = type(sampler) is torch.utils.data.RandomSampler and not sampler.replacement and len(sampler) == len(dataset)
    plain = drawn or type(sampler) is torch.utils.data.SequentialSampler and len(sampler) == len(dataset)
    return drawn, None if plain else sampler, None


def _check_sampler(name: str, sampler: Any) -> None:
    if sampler is None:
        return
    for one in (sampler, getattr(sampler, "sampler", None)):
        if int(getattr(one, "num_replicas", 1)) > 1:
            raise TypeError(f"the {name} is a {type(one).__name__} of {one.num_replicas} replicas, which gives a part of the samples: "
                            f"leave it away, the server shares them (shuffle={getattr(one, 'shuffle', True)})")
    if not hasattr(sampler, "__len__"):
        raise TypeError(f"the {name}, a {type(sampler).__name__}, has no __len__: the server shares as many as a pass has")
