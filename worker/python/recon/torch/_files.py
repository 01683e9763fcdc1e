"""A loader of files that only a reader can cut into samples: workers lease the files."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from recon import _core
from recon._leases import Batch, Leases
from recon.torch._data import Begin, of_torch
from recon.torch._loop import JobLoader, Loop, PassOver

if TYPE_CHECKING:
    from recon.torch._join import Job


def leased(files: Sequence[Any], read: Callable[[Any], Iterable[Any]], *, samples_per_file: int, batch_size: int = 1,
           shuffle: bool = True, shuffle_buffer: int = 0, fingerprint: str | None = None,
           reseed: bool = True, collate_fn: Callable[[list[Any]], Any] | None = None, **options: Any) -> FileLoader:
    """A loader of data that has no index: workers share files, and each reads those it has.

        loader = rt.leased(sorted(glob("train-*.tar")), read_samples, samples_per_file=10000, batch_size=128)
        rt.join(model, optimizer, loader, epochs=10)

    Arguments:
        files: paths, addresses or whatever `read` takes; the same on every worker, in the same order.
        read: ``read(file)`` yields the samples of a file, from its beginning. It is all of the file that it gives:
            ``get_worker_info()`` is None there, for the job shares the files.
        samples_per_file: how many samples a file has, about. Progress is counted by it: each file is so many samples in
            ``reconctl status``, in ``len(loader)`` and for a learning-rate scheduler that keeps to the job's progress,
            however many it has. What a push weighs are the samples that it is made of.
        batch_size: samples of a batch. A file's last batch has what is left.
        shuffle: the files of each pass in an order of its own, by the job's seed.
        shuffle_buffer: samples of a file that are drawn from, by the job's seed; 0: they come as `read` yields them.
        fingerprint: says which data it is: a worker that has another is refused. By default of the files' names, without
            their folders; "" for none.
        reseed: as `DataLoader` takes it.
        collate_fn, **options: as torch's DataLoader takes them: ``num_workers``, ``pin_memory``, ``timeout``...

    A file counts as done when all pushes that its samples went into are acknowledged, and it is done once in each
    pass, whoever dies. Where its worker dies before, another worker reads it again from its beginning: what had been
    pushed of it stays in the model, and those samples count twice. That is one file for a worker that dies, or as many
    as it read at a time.

    A worker of an asynchronous job reads ``num_workers`` files at a time and takes batches of them in turn, so that
    each batch is of one file and the next of another. In a synchronous job it has one file at a time: one process reads
    ahead in it, more have nothing to do. Opening a file may take as long as it likes; a ``timeout`` ends it.
    """
    return FileLoader(files, read, samples_per_file, batch_size, shuffle, shuffle_buffer, fingerprint, reseed,
                      collate_fn, options)


@dataclass
class _Stream:
    """A file that this worker is to read, or reads."""

    number: int  # Of the worker's streams.
    file: int  # Of the list.
    data_epoch: int
    order_key: int  # Number of its first sample, counted over all passes.
    split: int  # Of the core.
    taken: int = 0  # Samples that came from its process.
    ended: bool = False  # No more will.
    gone: bool = False  # It is not handed out any more.


@dataclass
class _Batch(Batch):  # `last` is of its file.
    stream: _Stream
    first: int  # Number of its first sample in the file.


@dataclass(frozen=True)
class _Ask:
    """What a process is asked for: a file's next batch."""

    slot: int  # Of the process.
    stream: int
    file: int
    seed: str  # Of what is drawn.
    size: int


class _Reader(torch.utils.data.Dataset):
    """In a process of the DataLoader: has one file open, and gives its samples batch by batch."""

    def __init__(self, files: Sequence[Any], read: Callable[[Any], Iterable[Any]], shuffle_buffer: int) -> None:
        self._files, self._read, self._buffer = files, read, shuffle_buffer
        self._stream = -1
        self._samples: Iterator[Any] | None = None
        self._ahead: list[Any] = []  # The next sample, if there is one.

    def __len__(self) -> int:
        return len(self._files)

    def __getitems__(self, asks: Sequence[_Ask | None]) -> list[tuple[list[Any], bool]]:
        """The samples, and whether they are the file's last; nothing for a file that has ended."""
        ask = asks[0]
        if ask is None:
            return []
        info = torch.utils.data.get_worker_info()
        if info is not None and info.id != ask.slot:
            raise RuntimeError(f"process {info.id} of the DataLoader was asked for what process {ask.slot} reads: this "
                               f"PyTorch, {torch.__version__}, does not ask them in turn. Use num_workers=0 or 1")
        try:
            with _all_of_it():
                return self._next(ask)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(f"while {self._files[ask.file]!r} was read")
            raise

    def _next(self, ask: _Ask) -> list[tuple[list[Any], bool]]:
        if ask.stream != self._stream:
            self._close()
            self._stream = ask.stream
            self._samples = iter(self._read(self._files[ask.file]))
            if self._buffer > 0:
                self._samples = _drawn(self._samples, self._buffer, random.Random(ask.seed))
        if self._samples is None:
            return []
        samples = self._ahead + list(itertools.islice(self._samples, ask.size - len(self._ahead)))
        self._ahead = list(itertools.islice(self._samples, 1))
        if not self._ahead:
            self._close()
        return [(samples, self._samples is None)]

    def _close(self) -> None:
        if hasattr(self._samples, "close"):
            self._samples.close()  # A generator may have a file open.
        self._samples, self._ahead = None, []


@contextlib.contextmanager
def _all_of_it() -> Iterator[None]:
    """A reader is not told of processes that load data: it would leave the others' part of a file away."""
    of_torch = torch.utils.data._utils.worker
    info, of_torch._worker_info = of_torch._worker_info, None
    try:
        yield
    finally:
        of_torch._worker_info = info


class _Alone(torch.utils.data.IterableDataset):
    """All files, for one process that no job shares them with; each of a loader's processes has its own."""

    def __init__(self, asks: Sequence[tuple[Any, str]], read: Callable[[Any], Iterable[Any]], shuffle_buffer: int,
                 without: Sequence[tuple[int, int, int]]) -> None:
        """`asks`: files, each with the seed of what is drawn; `without`: of some, by their number, samples from one to
        another."""
        self._asks, self._read, self._buffer, self._without = asks, read, shuffle_buffer, without

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, len(self._asks), step):
            yield from self._samples_of(number)

    def _samples_of(self, number: int) -> Iterator[Any]:
        file, seed = self._asks[number]
        gone = {at for one, begin, end in self._without if one == number for at in range(begin, end)}
        with _all_of_it():
            samples = iter(self._read(file))
            if self._buffer > 0:
                samples = _drawn(samples, self._buffer, random.Random(seed))
        for at in itertools.count():
            with _all_of_it():
                one = list(itertools.islice(samples, 1))
            if not one:
                return
            if at not in gone:
                yield one[0]


def _drawn(samples: Iterator[Any], size: int, draw: random.Random) -> Iterator[Any]:
    buffer = list(itertools.islice(samples, size))
    for sample in samples:
        at = draw.randrange(size)
        buffer[at], sample = sample, buffer[at]
        yield sample
    draw.shuffle(buffer)
    yield from buffer


class _Collate:
    """Collates the samples as the user's function does, and counts them."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, got: list[tuple[list[Any], bool]]) -> tuple[Any, int, bool] | None:
        if not got:
            return None
        samples, last = got[0]
        return self.collate(samples) if samples else None, len(samples), last


class FileLeases(Leases):
    """The files of the splits that the server grants, of which each is one or a few; and the batches that come."""

    def __init__(self, core: Any, order: Callable[[int], Sequence[int]], files: int, samples_per_file: int) -> None:
        super().__init__(core, order, files * samples_per_file)
        self._per_file = samples_per_file
        self._streams: collections.deque[_Stream] = collections.deque()
        self._number = 0
        self._left: dict[int, int] = {}  # Files of each split that is open, and whose samples are not all pushed.

    def peek(self, in_hands: Sequence[Batch] = ()) -> _Stream | None:
        """What `take_file` would give, which stays here."""
        while True:
            if not self._streams:
                self._ask(bool(in_hands) and self._all_in(in_hands))
            if not self._streams or self._streams[0].split in self._left:
                return self._streams[0] if self._streams else None
            self._streams.popleft()  # It is lost with one before.

    def take_file(self, data_epoch: int | None, in_hands: Sequence[Batch]) -> _Stream | None:
        """The next file, of this pass if one is given; None if there is none now. It is `handed_out` until its last
        batch is closed: a synchronous worker has one at a time."""
        stream = self.peek(in_hands)
        if stream is None or data_epoch not in (None, stream.data_epoch):
            return None
        self.handed_out += 1
        return self._streams.popleft()

    def _all_in(self, in_hands: Sequence[Batch]) -> bool:
        return self.handed_out == sum(batch.last for batch in in_hands)

    def _cut(self, job: dict[str, Any], lease: int, data_epoch: int, begin: int, end: int, done: int) -> None:
        order, first_key = self._order(data_epoch), data_epoch * self._samples
        for number, first in enumerate(range(begin, end, job["split_samples"])):
            if number < done:
                continue
            split = self.core.open_split(lease, number)
            firsts = range(first, min(first + job["split_samples"], end), self._per_file)
            self._left[split] = len(firsts)
            for at in firsts:
                self._streams.append(_Stream(self._number, int(order[at // self._per_file]), data_epoch, first_key + at,
                                             split))
                self._number += 1
        self.core.forget_lease(lease)

    def batch(self, stream: _Stream, samples: int, last: bool) -> _Batch:
        """A batch that has come."""
        key = stream.order_key + min(stream.taken, self._per_file - 1)
        first, stream.taken = stream.taken, stream.taken + samples
        stream.ended = last
        return _Batch((), stream.data_epoch, key, stream.split, last, samples, stream, first)

    def begin(self, batch: Batch) -> bool:
        if batch.split in self._left and self.core.begin(batch.order_key, batch.split):
            return True
        assert isinstance(batch, _Batch)
        self._forget(batch.split)
        batch.stream.ended = True
        self._let_go(batch.stream)
        return False

    def close(self, batch: Batch) -> None:
        if not batch.last:
            return
        assert isinstance(batch, _Batch)
        self._let_go(batch.stream)
        if self._left.get(batch.split, 0) > 1:
            self._left[batch.split] -= 1
        else:
            self._forget(batch.split)

    def _let_go(self, stream: _Stream) -> None:
        if not stream.gone:
            stream.gone = True
            self.handed_out -= 1

    def _forget(self, split: int) -> None:
        if self._left.pop(split, None) is not None:
            self.core.close_split(split)


class _Asks(torch.utils.data.Sampler):
    """What the processes are asked for, in turn: each has a file of its own. Nothing where there is no file now."""

    def __init__(self, processes: int) -> None:
        self.loader: FileLoader | None = None
        self.slots: list[_Stream | None] = [None] * max(1, processes)
        self.asked: collections.deque[_Stream | None] = collections.deque()

    def __iter__(self) -> Iterator[list[_Ask | None]]:
        assert self.loader is not None
        for slot in itertools.cycle(range(len(self.slots))):
            stream = self.slots[slot]
            if stream is None or stream.ended:
                # Those of the next pass come after this one's.
                passes = [other.data_epoch for other in self.slots if other is not None and not other.ended]
                stream = self.slots[slot] = self.loader.take_file(min(passes, default=None))
            self.asked.append(stream)
            yield [None if stream is None else self.loader.ask(slot, stream)]


def _fingerprint(files: Sequence[Any]) -> str:
    """Of names and numbers; empty for files that are something else. Machines may have them in folders of their own."""
    if not all(isinstance(file, (str, int, os.PathLike)) for file in files):
        return ""
    names = [str(file) if isinstance(file, int) else os.path.basename(os.fspath(file)) for file in files]
    return hashlib.blake2b(repr(names).encode(), digest_size=8).hexdigest()


class FileLoader(JobLoader):
    """A loader over files; `leased` makes it."""

    def __init__(self, files: Sequence[Any], read: Callable[[Any], Iterable[Any]], samples_per_file: int,
                 batch_size: int, shuffle: bool, shuffle_buffer: int, fingerprint: str | None, reseed: bool,
                 collate_fn: Callable[[list[Any]], Any] | None, options: dict[str, Any]) -> None:
        for name in ("sampler", "batch_sampler", "drop_last", "dataset"):
            if options.pop(name, None):
                raise TypeError(f"leased() takes no {name}: the server says which worker reads which file")
        if not options.get("in_order", True):
            raise TypeError("leased() takes no in_order=False: batches of a file come in their order")
        if isinstance(files, (str, bytes)):
            raise TypeError(f"files is {files!r}, expected a list")
        if not callable(read):
            raise TypeError(f"read is a {type(read).__name__}, expected a function that yields the samples of a file")
        for name, value, least in (("batch_size", batch_size, 1), ("samples_per_file", samples_per_file, 1),
                                   ("shuffle_buffer", shuffle_buffer, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value}, expected {least} or more")
        files = list(files)
        if not files:
            raise ValueError("there are no files")
        super().__init__(reseed)
        self.files = files
        self.fingerprint = _fingerprint(files) if fingerprint is None else fingerprint
        self.batch_size = batch_size
        self.samples_per_file = samples_per_file
        self.samples = len(files) * samples_per_file
        self.shuffle = shuffle
        self._leases: FileLeases | None = None
        self._read, self._buffer = read, shuffle_buffer
        self._items: Iterator[Any] | None = None
        self._kept: collections.deque[tuple[Batch, Any]] = collections.deque()  # Of a pass to come, or put back.
        self.collate_fn = collate_fn or torch.utils.data.default_collate
        self.worker_init_fn = options.get("worker_init_fn")
        self._alone_options = {name: value for name, value in options.items() if name != "persistent_workers"}
        self._asks = _Asks(options.get("num_workers", 0))
        options["worker_init_fn"] = Begin(options.pop("worker_init_fn", None))
        self._loader = torch.utils.data.DataLoader(
            _Reader(files, read, shuffle_buffer), batch_sampler=self._asks,
            collate_fn=_Collate(self.collate_fn), **options)

    def __getattr__(self, name: str) -> Any:
        return of_torch(self, name)

    def __len__(self) -> int:
        """Batches of a pass, over all workers, about."""
        return len(self.files) * -(-self.samples_per_file // self.batch_size)

    def order(self, data_epoch: int) -> Sequence[int]:
        """The order of the files in a pass."""
        if not self.shuffle:
            return range(len(self.files))
        return _core.order(len(self.files), self.job.seed, data_epoch)

    def settings(self, job_settings: dict[str, Any], policy: str) -> list[tuple[str, str]]:
        settings = [] if "sync" in job_settings else [("sync", policy)]
        split = job_settings.get("split_samples")
        if split is None:
            # A split is a file, or as many as a round of local steps takes.
            found = re.match(r"(?:local|diloco):(\d+)", str(job_settings.get("sync", policy)))
            steps = max(int(found[1]) if found else 0, *(int(job_settings.get(name, 0)) for name in (
                "local_steps", "auto_local_steps_max")))
            files = max(1, -(-steps * self.batch_size // self.samples_per_file))
            settings.append(("split-samples", str(files * self.samples_per_file)))
        elif int(split) % self.samples_per_file != 0:
            raise ValueError(f"split_samples is {split}, a file counts as {self.samples_per_file} samples: a split has "
                             "whole files")
        return settings

    def share(self, core: Any) -> Leases:
        self._leases = FileLeases(core, self.order, len(self.files), self.samples_per_file)
        return self._leases

    def take_file(self, data_epoch: int | None) -> _Stream | None:
        """For the sampler."""
        assert self._leases is not None
        with self.job._lock:
            return None if self.job._left else self._leases.take_file(data_epoch, self.job._unstepped)

    def ask(self, slot: int, stream: _Stream) -> _Ask:
        """For the sampler."""
        assert self._leases is not None
        return _Ask(slot, stream.number, stream.file, self._seed_of(stream.data_epoch, stream.file),
                    self._leases.core.job()["batch_samples"])

    def _seed_of(self, data_epoch: int, file: int) -> str:
        return f"{self.job.seed}/{data_epoch}/{file}"

    # What a loader of torch has, and this one needs not.
    sampler, batch_sampler, drop_last = None, None, False
    # The processes live as long as the job: a file is read on where it was left.

    loads_again = False

    def _fetch(self, job: Job, loop: Loop) -> tuple[Batch, Any] | None:
        if not self._kept and self._items is None:
            first = job.peek()
            if first is None:
                return None
            if not loop.starts_with(first):
                raise PassOver
            self._seed(job, first.order_key)
            self._asks.loader = self
            self._items = iter(self._loader)
        if not self._kept:
            got = self._next(job)
            if got is None:
                return None
            self._kept.append(got)
        if not loop.starts_with(self._kept[0][0]):
            raise PassOver
        return self._kept.popleft()

    def _loads(self) -> bool:
        return bool(self._kept) or any(stream is not None for stream in self._asks.asked)

    def _put_back(self, batches: Sequence[tuple[Batch, Any]]) -> None:
        self._kept.extendleft(reversed(batches))

    def _claim(self, batch: Batch) -> bool:
        if not self._kept or self._kept[0][0] is not batch:
            return False
        self._kept.popleft()
        return True

    def _alone(self, data_epoch: int, without: Sequence[Batch]) -> Iterator[Any]:
        order = [int(file) for file in self.order(data_epoch)]
        asks = [(self.files[file], self._seed_of(data_epoch, file)) for file in order]
        gone = [(order.index(batch.stream.file), batch.first, batch.first + batch.samples) for batch in without
                if isinstance(batch, _Batch)]
        return iter(torch.utils.data.DataLoader(_Alone(asks, self._read, self._buffer, gone), batch_size=self.batch_size,
                                                collate_fn=self.collate_fn, **self._alone_options))

    def _next(self, job: Job) -> tuple[Batch, Any] | None:
        assert self._items is not None and self._leases is not None
        got = self._receive(self._leases.core)
        stream = self._asks.asked.popleft()
        if stream is None or stream.ended:
            return None  # Of a stream that has ended, it was asked for before that was known.
        data, samples, last = got
        batch = self._leases.batch(stream, samples, last)
        if samples > 0:
            return batch, data
        self._leases.close(batch)  # An empty file.
        return None

    def _receive(self, core: Any) -> Any:
        """What comes next. While a file is opened, the server waits."""
        assert self._items is not None
        stream = self._asks.asked[0] if self._asks.asked else self._asks.slots[0]
        if stream is not None and stream.taken > 0 and not stream.ended:
            return next(self._items)
        core.pause()
        try:
            return next(self._items)
        finally:
            core.resume()
