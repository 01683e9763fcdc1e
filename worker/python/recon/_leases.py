"""From leases to batches: which samples this worker computes, in which order, and what has come of them."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recon import _core

# Between two questions for work when there is none.
IDLE_SECONDS = 0.02


class JobDone(Exception):
    """A loop that trained in the job asks for more, and the job is done."""


# Of a split, where the script says nothing: about so many samples, but at least so many batches, so that local steps can
# be turned to while the job runs; and so many splits in a pass.
SPLIT_SAMPLES = 2000
SPLIT_BATCHES_MIN = 16
SPLITS_MIN = 2


def policy_settings(job_settings: dict[str, Any], policy: str, samples: int, batch: int) -> list[tuple[str, str]]:
    """How workers agree and share the data, where the script does not say: by `policy`, in splits of whole batches."""
    settings = []
    if "sync" not in job_settings:
        settings.append(("sync", policy))
    rounds = str(job_settings.get("sync", policy)).startswith(("local", "diloco", "auto"))
    # With rounds of local steps the server says how many batches a split must have.
    if "split_samples" not in job_settings and not rounds and "local_steps" not in job_settings:
        batches = min(max(SPLIT_SAMPLES // batch, SPLIT_BATCHES_MIN), samples // (SPLITS_MIN * batch))
        settings.append(("split-samples", str(batch * max(1, batches))))
    return settings


@dataclass
class Batch:
    """Samples of one split, in the order of the pass."""

    indices: Sequence[int]
    data_epoch: int
    order_key: int  # Number of the first sample, counted over all passes.
    split: int  # Of the core.
    last: bool  # Of its split.
    samples: int


class Leases:
    """Batches of the splits that the server grants, and what else it asks for.

    ``order(data_epoch)`` is the order of all samples of a pass, the same on every worker. One thread.
    """

    def __init__(self, core: Any, order: Callable[[int], Sequence[int]], samples: int) -> None:
        self.core = core
        self.finished = False
        self._order = order
        self._samples = samples
        self._ready: collections.deque[Batch] = collections.deque()
        # "evaluate" with its lease, or "initial_values": for whoever has the model, between two steps.
        self.asked: collections.deque[tuple[str, int]] = collections.deque()
        self.handed_out = 0  # Batches that were taken and are neither pushed nor dropped.
        self._open: set[int] = set()

    def take(self) -> Batch | None:
        """The next batch, or None if there is none now. It never waits for other workers."""
        if self.peek() is None:
            return None
        self.handed_out += 1
        return self._ready.popleft()

    def peek(self, in_hands: Sequence[Batch] = ()) -> Any:
        """What `take` would give, which stays here. `in_hands`: the batches that the script has and has not pushed. If
        they are all that is handed out, the script asks ahead, and gets more before they are pushed."""
        if not self._ready:
            self._ask(bool(in_hands) and self._all_in(in_hands))
        return self._ready[0] if self._ready else None

    @property
    def ready(self) -> int:
        """How many batches `take` would give without a question."""
        return len(self._ready)

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Nothing has come of these: they are the next ones again. They are in the order in which they were taken."""
        self._ready.extendleft(reversed(batches))
        self.handed_out -= len(batches)

    def _all_in(self, in_hands: Sequence[Batch]) -> bool:
        return self.handed_out == len(in_hands)

    def _ask(self, ahead: bool = False) -> None:
        job = self.core.job()
        # A synchronous step waits for everyone who takes part in it: no new work with pushes under way.
        waits = job["bound"] == 0 and not ahead and (self.handed_out or self.core.begun)
        if self.finished or self.asked or waits:
            return
        kind, lease, data_epoch, begin, end, done = self.core.next_work()
        if kind == "finished":
            self.finished = True
        elif kind in ("evaluate", "initial_values"):
            self.asked.append((kind, lease))
        elif kind == "train":
            self._cut(job, lease, data_epoch, begin, end, done)

    def _cut(self, job: dict[str, Any], lease: int, data_epoch: int, begin: int, end: int, done: int) -> None:
        order = self._order(data_epoch)
        per_split, per_batch = job["split_samples"], job["batch_samples"]
        for number, first in enumerate(range(begin, end, per_split)):
            if number < done:
                continue
            split = self.core.open_split(lease, number)
            self._open.add(split)
            after = min(first + per_split, end)
            for at in range(first, after, per_batch):
                stop = min(at + per_batch, after)
                self._ready.append(Batch(order[at:stop], data_epoch, data_epoch * self._samples + at, split,
                                         stop == after, stop - at))
        self.core.forget_lease(lease)

    def begin(self, batch: Batch) -> bool:
        """Whether the batch is still this worker's: otherwise others compute it."""
        if self.core.begin(batch.order_key, batch.split):
            return True
        self.close(batch)
        return False

    def take_open(self, split: int) -> bool:
        """Whether the split is still open here: whoever asks closes it, when that is to be."""
        if split not in self._open:
            return False
        self._open.discard(split)
        return True

    def close(self, batch: Batch) -> None:
        """The batch is pushed, or nothing comes of it."""
        self.handed_out -= 1
        if batch.last and batch.split in self._open:
            self._open.discard(batch.split)
            self.core.close_split(batch.split)

    def rest(self) -> None:
        """A short while without work."""
        self.core.pause()
        try:
            time.sleep(IDLE_SECONDS)
        finally:
            self.core.resume()


def metric_sums(result: Any) -> list[tuple[str, float, float]]:
    """What an evaluation returned, as (name, sum, weight)."""
    if not isinstance(result, dict):
        raise TypeError(f"evaluate returned {type(result).__name__}, expected a dict such as "
                        "{'loss': (sum, samples), 'accuracy': (correct, samples)}")
    sums = []
    for name, value in result.items():
        try:
            total, weight = value if isinstance(value, (tuple, list)) else (value, 1)
            sums.append((str(name), float(total), float(weight)))
        except (TypeError, ValueError):
            raise TypeError(f"evaluate returned {value!r} as {name}, expected a number or (sum, samples)") from None
    return sums
