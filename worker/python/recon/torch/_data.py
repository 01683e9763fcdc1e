"""A DataLoader whose batches come from the server's leases."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from recon import _core
from recon._leases import Batch

if TYPE_CHECKING:
    from recon.torch._join import Job


class _Collate:
    """Collates samples as the user's function does; of no samples it makes None: there was no work."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        return self.collate(samples) if samples else None


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
            yield [] if batch is None else [int(index) for index in batch.indices]


class DataLoader:
    """In place of ``torch.utils.data.DataLoader``: the samples of each pass are shared by all workers of the job,
    each computed once, whoever dies.

    Arguments are those of torch's, but for ``sampler`` they mean the same on every worker:
        shuffle: each pass in an order of its own, by the job's seed. On by default, as with DistributedSampler.
        sampler: its order is kept: ``list(sampler)`` of a pass, after ``sampler.set_epoch(pass)`` where it has that.
            It must be the same on every worker.
    ``batch_sampler``, ``drop_last`` and iterable data sets are not taken.

    A ``for`` loop over it ends with the pass. Loop number N (from 0) is of pass N: a worker that comes later goes
    through the passes that are done without a batch, so that whatever the script does once a pass agrees.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = True, sampler: Any = None, *,
                 collate_fn: Callable[[list[Any]], Any] | None = None, **options: Any) -> None:
        for name in ("batch_sampler", "drop_last"):
            if options.pop(name, None):
                raise TypeError(f"recon's DataLoader takes no {name}: the server says which samples make a batch")
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise TypeError("an iterable data set has no indices to share: give one with __getitem__ and __len__")
        if batch_size is None or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected 1 or more")
        self.dataset = dataset
        self.batch_size = int(batch_size)
        self.sampler = sampler
        self.shuffle = shuffle
        self._batches = _BatchSampler()
        self._pass = 0
        self._held: tuple[Batch, Any] | None = None
        collate = collate_fn or torch.utils.data.default_collate
        self._loader = torch.utils.data.DataLoader(_Samples(dataset), batch_sampler=self._batches,
                                                   collate_fn=_Collate(collate), **options)
        self._items: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Batches of a pass, over all workers."""
        return -(-len(self.dataset) // self.batch_size)

    @property
    def job(self) -> Job:
        """What `join` made of it."""
        if self._batches.job is None:
            raise RuntimeError("the loader has no job yet: call recon.torch.join(model, optimizer, loader) first")
        return self._batches.job

    def order(self, data_epoch: int) -> Sequence[int]:
        """The order of all samples in a pass."""
        if self.sampler is not None:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(data_epoch)
            order = list(self.sampler)
            if len(order) != len(self.dataset):
                raise ValueError(f"the sampler gave {len(order)} indices in pass {data_epoch}, the data set has "
                                 f"{len(self.dataset)} samples: each is computed once")
            return order
        if not self.shuffle:
            return range(len(self.dataset))
        return _core.order(len(self.dataset), self.job.seed, data_epoch)

    def __iter__(self) -> Iterator[Any]:
        job = self.job
        data_epoch, self._pass = self._pass, self._pass + 1
        if self._items is None:
            self._items = iter(self._loader)
        while not job.finished:
            if self._held is None:
                self._held = self._next(job)
                continue
            batch, data = self._held
            if batch.data_epoch > data_epoch:
                return
            self._held = None
            if job.begin(batch):
                yield data

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
