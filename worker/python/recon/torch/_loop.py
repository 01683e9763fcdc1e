"""A loop over a job's loader: where its batches come from, when it ends, and what comes of those it has given."""

from __future__ import annotations

import collections
import dis
import random
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree

from recon._leases import Batch, JobDone, Leases

if TYPE_CHECKING:
    from recon.torch._join import Job

# Of the first batches of a loop, so many are looked for when it has ended: somebody may keep all of them.
KEPT_BATCHES = 3
# Of batches that cannot be loaded again, so many go back from a loop that is left.
KEPT_AHEAD = 8
# Batches that are not the job's, in a loop, for a script that reads ahead past the job's end.
SPARES_MAX = 8
# How often a loop in a thread of its own looks, 20 ms apart, whether its batches are stepped, when there are no more. Who waits
# for one more before the next step gets the end.
WAITS_MAX = 250
_LIBRARIES = tuple({path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib", "purelib", "platlib")})


# Of batches that the script gives itself again.
KEPT_TEXT = (". Its batches are kept somewhere, as itertools.cycle and list() do: write `while True: for batch in loader`, and end "
             "it at recon.JobDone")
ALONE_TEXT = (". The script read two batches with the model in eval() and without a backward, which is an evaluation's loop: call "
              "model.train() first")


class PassOver(Exception):
    """No more batches of this pass."""


def _place() -> tuple[tuple[Any, int], bool]:
    """Where the script begins a loop, as code and line; and whether it begins it in a ``while``, as endless ones do. Of a
    library's loop it is where the script called the library."""
    frame: types.FrameType | None = sys._getframe(2)
    assert frame is not None
    place, endless = None, None
    innermost = frame.f_code, frame.f_lineno
    while frame is not None and (place is None or endless is None):
        if place is None and not frame.f_code.co_filename.startswith(_LIBRARIES):
            place = frame.f_code, frame.f_lineno
        if endless is None:
            endless = _in_while(frame)
        frame = frame.f_back
    return place or innermost, bool(endless)


def _in_while(frame: types.FrameType) -> bool | None:
    """Whether the innermost loop around what the frame does is a ``while``; None if there is no loop."""
    at, head = frame.f_lasti, -1
    instructions = list(dis.get_instructions(frame.f_code))
    for one in instructions:
        jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
        if jumps and isinstance(one.argval, int) and one.argval <= at < one.offset:
            head = max(head, one.argval)
    if head < 0:
        return None
    return next(one.opname for one in instructions if one.offset >= head and one.opname != "EXTENDED_ARG") != "FOR_ITER"


class JobLoader:
    """What loads the batches of one job; `join` takes any, and gives it its job.

    Of its kinds each has ``batch_size``; ``samples``, those of a pass over all workers; a ``fingerprint`` of the data;
    ``settings()`` and ``share()``; ``_fetch()``, ``_put_back()``, ``_claim()``, ``_close()`` and ``_alone()``.
    """

    # For loops that take a pass without a batch as the end of all: the first is of the pass that the job is in.
    skips_done_passes = False
    # Whether a batch can be loaded again: otherwise it is kept until its backward.
    loads_again = True
    batch_size: int
    samples: int
    fingerprint: str
    generator: torch.Generator | None

    def __init__(self, reseed: bool) -> None:
        self._job: Job | None = None
        self._pass = 0
        self._newest: weakref.ref[Loop] | None = None  # That was the job's. A loop that is left dies.
        self._first: list[weakref.ref[torch.Tensor]] = []  # Of its first batches.
        self._places: set[tuple[Any, int]] = set()  # Where loops have begun that were the job's.
        self._seeded = not reseed
        self._ended_early = False  # The newest loop ended before the pass was known to be over.
        self.went_alone = False  # The newest loop, at its second batch.
        self._looks = False  # The script takes single batches, each from a loop of its own, and trains on them.

    @property
    def job(self) -> Job:
        """What `join` made of it."""
        if self._job is None:
            raise RuntimeError("the loader has no job yet: call recon.torch.join(model, optimizer, loader) first")
        return self._job

    @property
    def _loop(self) -> Loop | None:
        return None if self._newest is None else self._newest()

    @property
    def batches_of_this_worker(self) -> int:
        """Batches of a pass that this worker gets, about: its part of ``len(loader)`` with the workers there are now."""
        return -(-len(self) // self.job.workers)  # type: ignore[arg-type]

    def settings(self, job_settings: dict[str, Any], policy: str) -> list[tuple[str, str]]:
        """How workers agree and share the data, where the script does not say: by `policy`."""
        raise NotImplementedError

    def share(self, core: Any) -> Leases:
        """This worker's share of the job's data."""
        raise NotImplementedError

    def _fetch(self, job: Job, loop: Loop) -> tuple[Batch, Any] | None:
        """The next batch of the loop's pass, or of one before; None if there is none now. `PassOver` if none comes."""
        raise NotImplementedError

    def _loads(self) -> bool:
        """Whether batches are being loaded."""
        raise NotImplementedError

    def _put_back(self, batches: Sequence[tuple[Batch, Any]]) -> None:
        """Nothing has come of these, the newest that were fetched: they are the next ones again."""
        raise NotImplementedError

    def _claim(self, batch: Batch) -> bool:
        """Takes one back that was put back; whether it is still the next one."""
        raise NotImplementedError

    def _close(self) -> None:
        """A loop has ended: what was loaded for it and not fetched is to be loaded again."""

    def _alone(self, data_epoch: int, without: Sequence[Batch]) -> Iterator[Any]:
        """A pass over all of the data, by this process alone, but for some batches."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        place, endless = _place()
        return Loop(self, place, endless, isinstance(sys.exc_info()[1], StopIteration))

    def _seed(self, job: Job, order_key: int) -> None:
        """Before the first batch: random numbers of this process begin anew, by the job's seed, the number of that batch
        and the process' rank in its group. Whoever begins the job keeps the script's."""
        if self._seeded:
            return
        self._seeded = True
        if order_key == 0 and job.rank == 0:
            return
        digest = blake2b(f"{job.seed}/{order_key}/{job.rank}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.manual_seed(seed)
        if self.generator is not None:
            self.generator.manual_seed(seed)

    def ends_pass(self) -> bool:
        """Whether the loop's pass is over, for those who must know at its last batch. After a ``step()``; waits for the
        next batch, which it keeps for the loop."""
        loop = self._loop
        return loop is None or loop.is_over()

    def finish(self) -> bool:
        """Whether the job is done, for loops that count batches and do not see the loader's end. Waits until it is, or
        until there are batches again; evaluates meanwhile, if this worker is asked to."""
        loop, job = self._loop, self.job
        if loop is not None and not loop.is_over():
            return False
        while not job.finished:
            if loop is not None and job.owes_step(loop, None):
                return False
            job.between_batches()
            if job.peek() is not None or not job.rest(None):
                return False
            job.pause()
        return True

    def after_step(self) -> None:
        """Nothing is under way. Where the last pass has ended for a script that reads ahead, no loop asks for what comes
        after it."""
        if self._ended_early and self._pass >= self.job.epochs:
            self._ended_early = False
            self.finish()

    def keeps_batches(self) -> bool:
        """Whether somebody has the batches of the newest loop still, to go through them again."""
        return len(self._first) > 1 and all(ref() is not None for ref in self._first)


class Loop:
    """One ``for`` over a loader. It is decided at its first batch what it is: the job's; or this process' alone, where
    gradients are switched off, or after the job's end."""

    def __init__(self, loader: JobLoader, place: tuple[Any, int], endless: bool, again: bool) -> None:
        self.data_epoch = -1
        self.token = object()  # By which batches know their loop, so that it dies when the script leaves it.
        self._loader = loader
        self._place, self._endless, self._again = place, endless, again
        self._items: Iterator[Any] | None = None  # Of a loop of this process alone.
        self._idle = False  # Which the job has been told.
        self._held: tuple[Batch | None, Any] | None = None
        self._given: collections.deque[tuple[Batch, Any]] = collections.deque()  # What may have to be put back.
        self._gave = 0
        self._gave_of_pass = 0  # Without what has come back of the pass before.
        self._spares = 0
        self._waits = 0  # For another thread's step.
        self._over = False

    @property
    def _job(self) -> Job:
        return self._loader.job

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        if self.data_epoch < 0:
            self._begin()
        elif self._items is None and self._trains_nothing():
            self._loader.went_alone = True
            self._go_alone([batch for batch, _ in self.take_back()])
        if self._items is not None:
            return self._next_alone()
        while not self.is_over():
            assert self._held is not None
            batch, data = self._held
            owes = batch is not None and self._job.owes_step(self, batch)
            if owes is None:
                self.end()
                break
            if owes:
                return self._next_spare(data)
            self._held = None
            if batch is None:
                return self._next_spare()
            if self._job.begin(batch, self):
                return self._give(batch, data)
        if self._gave == 0 and self._job.finished and self._is_beyond():
            self._after_the_end()
            return self._next_alone()
        raise StopIteration

    def __del__(self) -> None:
        try:
            if self.data_epoch >= 0 and self._items is None and not self._over and not self._job.finished_or_gone():
                self.take_back()
            self.end()
        except Exception:  # noqa: BLE001: a process that ends, or a job that is lost, which the next call says.
            pass

    def _begin(self) -> None:
        loader, job = self._loader, self._job
        if not torch.is_grad_enabled():
            self.data_epoch = max(0, loader._pass - 1)
            self._go_alone([])
            return
        before = loader._loop
        if before is not None:
            before.end()
        job.begin_loop(self)
        self.data_epoch = loader._pass
        self._again = self._again or self._endless and self._place in loader._places
        if job.finished and self._is_beyond():
            self._after_the_end()
            return
        loader._pass += 1
        loader.went_alone = False
        loader._newest, loader._first, loader._ended_early = weakref.ref(self), [], False
        loader._places.add(self._place)

    # Without the job.

    def _is_beyond(self) -> bool:
        """Of a pass that the job has not, for a script that does not end with an empty one."""
        return self.data_epoch >= self._job.epochs and not self._loader.skips_done_passes or self._loader._looks

    def _after_the_end(self) -> None:
        if (self._again or self._loader._looks) and not self._job.looks_like_evaluation():
            raise JobDone(f"the job is done, after {self._job.epochs} passes, and the loop that trained in it asks for more: end "
                          "it at recon.JobDone, or give join() as many epochs")
        self._loader._pass = max(self._loader._pass, self.data_epoch + 1)
        self._items = self._loader._alone(self.data_epoch, [])

    def _trains_nothing(self) -> bool:
        """At the second batch: nothing came of the first one, and nothing will. Trainers that have loaders of their own for
        evaluation switch to train() when they have read a step's batches."""
        if self._loader.skips_done_passes or self._gave != 1 or self._over or self._job.finished or self._job.trains(self):
            return False
        return not torch.is_grad_enabled() or self._job.looks_like_evaluation()

    def _go_alone(self, without: Sequence[Batch]) -> None:
        self._over = True
        self._items = self._loader._alone(self.data_epoch, without)
        self._idle = self._job.begin_idle()

    def _next_alone(self) -> Any:
        assert self._items is not None
        try:
            return next(self._items)
        except BaseException:
            self.end()
            raise

    # With it.

    def is_over(self) -> bool:
        """Whether no batch comes any more; waits for the next one."""
        job, loader = self._job, self._loader
        passed = False
        while self._held is None and not self._over:
            if job.finished:
                self.end()
                break
            owes = job.owes_step(self, None)
            if owes:
                self._held = (None, None)
                break
            if owes is None or passed:
                loader._ended_early = owes is None  # The script may have batches yet, and asks for no more after them.
                self.end()
                break
            job.between_batches()
            try:
                self._held = loader._fetch(job, self)
            except PassOver:
                passed = True  # The job may be done with it: its last values come first.
                continue
            if self._held is not None or loader._loads():
                continue
            if job.rest(self) and self._waits < WAITS_MAX:
                self._waits += job.steps_elsewhere()
                job.pause()
            elif self._gave_of_pass > 0 or self._spares >= SPARES_MAX:
                loader._ended_early = True
                self.end()
            else:
                self._held = (None, None)
        return self._held is None

    def starts_with(self, first: Any) -> bool:
        """Whether the next batch is of this loop. One that is not to end without any begins with the pass that it is of."""
        return bool(first.data_epoch <= self.data_epoch) or self.skips_to(first.data_epoch)

    def skips_to(self, data_epoch: int) -> bool:
        """Makes it a loop of a later pass, if it may be."""
        if self._gave or not (self._loader.skips_done_passes or self._loader._looks):
            return False
        self.data_epoch, self._loader._pass = data_epoch, data_epoch + 1
        return True

    def _give(self, batch: Batch, data: Any) -> Any:
        self._gave += 1
        self._gave_of_pass += batch.data_epoch == self.data_epoch
        self._waits = 0
        self._job.keep_spare(data)
        if self._gave > 1:
            self._loader._looks = False
        if self._gave <= KEPT_BATCHES:
            tensor = next((leaf for leaf in _pytree.tree_leaves(data) if isinstance(leaf, torch.Tensor)), None)
            if tensor is not None:
                self._loader._first.append(weakref.ref(tensor))
        if not self._loader.loads_again:
            self._given.append((batch, data))
            while len(self._given) > KEPT_AHEAD or not self._job.has(self._given[0][0]):
                self._given.popleft()
        return data

    def _next_spare(self, data: Any = None) -> Any:
        """A batch that is not the job's: for a step of others, or for a script that has read ahead past the last batch that
        there is, and wants another one before it steps those it has."""
        self._spares += 1
        self._job.hand_spare(self)
        if self._job.spare is not None:
            return self._job.spare
        return next(self._loader._alone(self.data_epoch, [])) if data is None else data

    def take_back(self) -> list[tuple[Batch, Any]]:
        """The batches that this loop gave and that had no backward go back."""
        data = {id(batch): data for batch, data in self._given}
        self._given.clear()
        taken = self._job.take_unused(self, None if self._loader.loads_again else data)
        self._stop()
        back = [(batch, data.get(id(batch))) for batch in taken]
        self._loader._put_back(back)
        if self._loader._pass == self.data_epoch + 1 and not self._job.trains(self):
            self._loader._pass = self.data_epoch  # It was a look: it counts for no pass.
        return back

    def end(self) -> None:
        """No more batches."""
        if self._idle:
            self._idle = False
            self._job.end_idle()
        if self._items is not None:
            self._items = iter(())
        elif not self._over and self.data_epoch >= 0:
            self._stop()
        self._over = True
        self._given.clear()

    def _stop(self) -> None:
        self._loader._close()
        if self._held is not None and self._held[0] is not None:
            self._loader._put_back([self._held])  # type: ignore[list-item]
        self._held = None
