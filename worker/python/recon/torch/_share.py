"""A worker's share of the job's data, between its loader and its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch

from recon._leases import IDLE_SECONDS, Batch, Leases
from recon.torch._handed import Handed
from recon.torch._loop import Loop, PassOver
from recon.torch._members import Members


class Share:
    """What loops over the loader ask of a job: batches, and what has come of those that it gave.

    Threads: a script may read its loader in one thread and step in another.
    """

    loader: Any
    model: torch.nn.Module
    _core: Any
    _leases: Leases
    _members: Members | None
    _began: float
    _left: bool
    spare: Any = None  # Data of a batch that the script has trained on.

    def _share_out(self, leases: Leases, parameters: Sequence[torch.nn.Parameter]) -> None:
        """`parameters`: as `Handed` has it."""
        self._leases = leases
        self._lock = threading.RLock()
        self._handed = Handed(parameters, whole=self._members is not None)
        self._put_back: list[Batch] = []  # Of the newest loop that was left.
        self._trains_in_eval = False
        self.epochs = int(self._core.job()["data_epochs"])
        self._workers = 1

    @property
    def finished(self) -> bool:
        raise NotImplementedError

    def between_batches(self) -> None:
        raise NotImplementedError

    def _look(self, beginning: bool = False) -> None:
        """Before the job gives the next parameters: the script has not changed those that it had."""
        raise NotImplementedError

    def _enter(self, batch: Batch, first: bool) -> None:
        """The worker begins with the batch; or goes on with it, if it is not the first since a step."""
        raise NotImplementedError

    def owes_step(self, loop: Loop, waiting: Batch | None) -> bool | None:
        """Whether the loop gives a batch that is not the job's before `waiting`, or before it looks for one, for a step of
        others; None if it ends instead."""
        return False

    @property
    def _unstepped(self) -> list[Batch]:
        return self._handed.batches

    @property
    def overlaps(self) -> bool:
        """Whether gradients are pushed while backward runs."""
        return False

    @property
    def rank(self) -> int:
        """Of this process, among those that are one worker."""
        return 0 if self._members is None else self._members.rank

    @property
    def workers(self) -> int:
        """How many the job has; after its end, and in a group of processes, how many it had at the last step."""
        if not self._left and self._members is None:
            self._workers = max(1, int(self._core.job()["workers"]))
        return self._workers

    def finished_or_gone(self) -> bool:
        """Whether nothing is to be put back any more."""
        return self._left or self._leases.finished

    def peek(self) -> Any:
        """The next batch or file, if there is one now; it is not taken."""
        with self._lock:
            return None if self._left else self._leases.peek(self._unstepped)

    def take(self, loop: Loop) -> Batch | None:
        """The next batch of the loop's pass; None if there is none now."""
        with self._lock:
            first = self.peek()
            if self.finished_or_gone():
                raise PassOver
            if first is not None and not loop.starts_with(first):
                raise PassOver
            return None if first is None else self._leases.take()

    def samples_of(self, batch: Batch) -> Sequence[int]:
        """Those that this process computes."""
        return batch.indices if self._members is None else self._members.samples_of(batch)

    def begin_loop(self, loop: Loop) -> None:
        """A loop over the loader begins, and with it what loops before have left is decided."""
        with self._lock:
            passed, untouched = self._handed.take_left()
            self._pass_over(passed)
            if not self.loader.loads_again:
                self._pass_over(untouched)
            elif untouched:
                self._drop_begun()
                self._leases.put_back(untouched)
                self.loader._pass -= 1  # It trained nothing: it counts for no pass.

    def begin(self, batch: Batch, loop: Loop | None) -> bool:
        """Gives the script a batch. One that it has read ahead begins when those before are stepped."""
        with self._lock:
            begins = self._handed.is_next()
            if begins:
                self._look(beginning=not self._handed.any_begun())
                if not self._leases.begin(batch):
                    return False
                self._enter(batch, first=not self._handed.any_begun())
            self._handed.hand(batch, None if loop is None else loop.token, begins)
            return True

    def keep_spare(self, data: Any) -> None:
        """The script gets this: a batch that is not the job's may be the same."""

    def hand_spare(self, loop: Loop) -> None:
        """Gives the script a batch that is not the job's."""
        with self._lock:
            self._handed.hand(Batch((), 0, 0, -1, False, 0), loop.token, begun=False, spare=True)

    def _enter_next(self) -> None:
        """After a step: what the script has read ahead begins."""
        while (entry := self._handed.next_to_begin()) is not None:
            entry.begun = self._leases.begin(entry.batch)
            entry.lost = not entry.begun
            if entry.begun:
                self._enter(entry.batch, first=True)

    def _take_for_step(self) -> tuple[list[Batch], list[Batch]]:
        """What a step is of, as far as it is this worker's still; and what the script has passed over before it, which is
        done when the step is pushed: it may have begun as a part of it."""
        self._trains_in_eval = self._trains_in_eval or not self.model.training
        entries, passed = self._handed.take()
        for entry in entries:
            if not entry.begun and not entry.lost:
                entry.lost = not self._leases.begin(entry.batch)
        return [entry.batch for entry in entries if not entry.lost], passed

    def _claim(self) -> bool:
        """At a gradient without a batch: whether it is of one that went back when its loop was left. The script has it, and
        has trained on it."""
        if not self._put_back:
            return False
        batch = self._put_back.pop(0)
        if not self.loader._claim(batch):
            return False
        self.loader._looks = True
        return self.begin(batch, None)

    def rest(self, loop: Loop | None) -> bool:
        """There is nothing to compute now. Whether something may come before the script has stepped what it has."""
        with self._lock:
            self._pass_over(self._handed.take_passed_over())
            if self._unstepped and self._handed.threaded:
                return True  # The other thread steps them.
            if self._handed.reads_ahead() and not self._leases.asked:
                return False
            # What the script accumulates is not waited for: the server gives no more before these are done.
            self._let_go()
            return True

    def may_interrupt(self) -> bool:
        """Whether the server's questions may be answered now: nothing is under way, but for what the script has read ahead
        and has not begun with."""
        if not self._unstepped:
            return True
        if self._handed.threaded or self._handed.backwards:
            return False
        self._drop_begun()
        return True

    def steps_elsewhere(self) -> bool:
        """Whether another thread has batches that it is to step."""
        return bool(self._unstepped) and self._handed.threaded

    def pause(self) -> None:
        """A short while without work, unless there is something to do."""
        if self._left or self._leases.finished or self._leases.asked and not self._unstepped:
            return
        self._core.pause()
        try:
            time.sleep(IDLE_SECONDS)
        finally:
            self._core.resume()

    def _let_go(self) -> None:
        """The batches that had a backward since the last step() count as done. What the script has accumulated of them
        stays in `.grad` and goes with its next step(): only the script knows what comes before one, such as a GradScaler's
        scale."""
        batches = self._handed.take_used()
        if batches:
            self._drop_begun()
            self._close(batches)
            self._enter_next()

    def _pass_over(self, batches: Sequence[Batch]) -> None:
        """The script makes nothing of these: they are done."""
        if batches and not self._handed.backwards:
            self._drop_begun()
        self._close(batches)
        self._enter_next()

    def _drop_begun(self) -> None:
        """Nothing comes of what has begun; what is left of it begins anew."""
        if self._left:
            return
        self._core.drop()
        self._handed.forget_begun()

    def _close(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._leases.close(batch)

    # Loops that do not train.

    def has(self, batch: Batch) -> bool:
        """Whether the script has this one, and has not stepped it."""
        return self._handed.has(batch)

    def trains(self, loop: Loop) -> bool:
        """Whether something has come of a batch of this loop."""
        return self._handed.trains(loop.token)

    def looks_like_evaluation(self) -> bool:
        """Whether the model is in ``eval()``, and the script trains in no such."""
        return not self.model.training and not self._trains_in_eval

    def take_unused(self, loop: Loop, kept: Collection[int] | None) -> list[Batch]:
        """A loop is left: its batches that had no backward go back, in their order. Of those that are not `kept` (by id)
        nothing comes."""
        with self._lock:
            batches = self._handed.take_unused(loop.token)
            if not batches:
                return []
            if not self._handed.backwards:
                self._drop_begun()
            gone = [batch for batch in batches if kept is not None and id(batch) not in kept]
            self._close(gone)
            self._enter_next()
            self._put_back = [batch for batch in batches if not any(batch is one for one in gone)]
            return list(self._put_back)

    def begin_idle(self) -> bool:
        """Heartbeats say that nothing is computed for a reason; whether they do."""
        if self._left:
            return False
        self._core.pause()
        return True

    def end_idle(self) -> None:
        if not self._left:
            self._core.resume()
