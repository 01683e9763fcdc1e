"""A learning-rate scheduler that keeps to a job's progress."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any


class Progress:
    """How far a job is, and how much of that this worker has done: in batches."""

    def __init__(self, length: int) -> None:
        self.length = length  # Batches of a pass, over all workers.
        self.job = 0
        self.own = 0
        self.over = False  # The job is done, and its schedulers are the script's own again.
        self._counts = False  # Whether it has begun to count.

    def advance(self, job: dict[str, Any], data_epoch: int, before: int, batches: int, batch_size: int) -> None:
        """A step of `batches` batches is done, whose first comes after `before` of its pass. In a synchronous job each
        worker has done as much as this one; in others what comes before this worker's batches, in the order of the pass,
        is done or under way."""
        self.own += batches
        first = data_epoch * self.length
        if job["bound"] != 0:
            self.job = first + before + batches
            return
        if not self._counts:
            # The other workers may have begun the splits before.
            self.job = max(self.job, first + before - (job["workers"] - 1) * -(-job["split_samples"] // batch_size))
            self._counts = True
        self.job = min(max(self.job, first) + max(1, job["workers"]) * batches, first + self.length)


class _Position:
    """The steps of a schedule that the job has come to. A script steps it once a batch, or once so many batches: what it
    does says how many."""

    def __init__(self, progress: Progress, done: int) -> None:
        self.shared = False  # Whether other workers' batches have counted.
        self._progress = progress
        self._at = float(done)
        self._began = False
        self._job, self._own = 0, progress.own  # The progress at the last step.
        self._batches = 1  # Of this worker's, between two steps: the most there were.
        self._pace = 1.0  # The job's batches for one of this worker's.

    def after_step(self) -> int:
        """Where the schedule is to be now that the script steps it."""
        own = self._progress.own - self._own
        self._batches = max(self._batches, own)
        if not self._began:
            # One that was loaded with its state goes on where it is.
            self._job = max(0, min(int(self._at) * self._batches, self._progress.job - own))
        moved = self._progress.job - self._job
        if own == 0:
            self._at += self._pace
        elif moved == own:
            self._at += 1  # As without a job.
        elif moved > 0:
            self.shared = True
            self._at += moved / self._batches
            if self._progress.job % self._progress.length == 0:
                self._at = float(math.ceil(self._at - 1e-6))  # A pass may end with a step of fewer batches.
            if self._began:
                self._pace = max(1.0, moved / own)
        self._began = True
        self._job, self._own = max(self._job, self._progress.job), self._progress.own
        return int(self._at + 1e-6)


def _take_over(scheduler: Any, step: Callable[..., None]) -> None:
    """Gives a scheduler another ``step()``."""
    its_state: Callable[[], dict[str, Any]] = scheduler.state_dict

    def state_dict() -> dict[str, Any]:
        # A scheduler's state is whatever it has as attributes; these two are ours, and cannot be saved.
        return {name: value for name, value in its_state().items() if name not in ("step", "state_dict")}

    scheduler.step, scheduler.state_dict = step, state_dict


def follow(scheduler: Any, progress: Progress) -> None:
    """Makes ``scheduler.step()`` go as far as the job has come."""
    its_step: Callable[..., None] = scheduler.step
    takes_metrics = "metrics" in inspect.signature(its_step).parameters
    done = getattr(scheduler, "last_epoch", 0)  # A ChainedScheduler has none.
    position = _Position(progress, done)

    def step(*args: Any) -> None:
        if args and takes_metrics or progress.over:
            return its_step(*args)
        nonlocal done
        goal = position.after_step()
        if position.shared:
            goal = min(goal, getattr(scheduler, "total_steps", goal))
        while done < goal:
            its_step()
            done += 1
        return None

    _take_over(scheduler, step)


class Pace:
    """How a script steps one scheduler."""

    def __init__(self) -> None:
        self.batches = 1  # Of this worker's, between two steps within a pass: the most there were.
        self.counted = 0  # Steps of the scheduler.


class StepProgress:
    """How many batches a job has stepped whose workers have the optimizer. It is the same at all workers that have the job's
    state, and so are the paces of schedulers, as long as all run one script."""

    def __init__(self, length: int) -> None:
        self.length = length  # Batches of a pass, over all workers.
        self.job = 0
        self.own = 0  # Batches for which this worker took a step.
        self.shared = False  # Whether a step was of several batches.
        self.resumed = False  # Whether it goes on from a state, which may have some batches twice.
        self.void = False  # Whether the last batch was of no step.
        self.over = False  # As `Progress` has it.
        self.paces: list[Pace] = []

    def take(self, batches: int) -> None:
        """A step of so many batches is done, 0 for a second one of the same. Each worker takes each step of the job."""
        self.shared = self.shared or batches > 1
        self.job += batches
        self.own += batches > 0
        self.void = False

    def state(self) -> dict[str, Any]:
        return {"job": self.job, "shared": self.shared, "paces": [[pace.batches, pace.counted] for pace in self.paces]}

    def load(self, state: dict[str, Any]) -> None:
        self.job, self.shared = int(state["job"]), bool(state["shared"])
        self.resumed = self.job > 0
        for pace, (batches, counted) in zip(self.paces, state["paces"]):
            pace.batches, pace.counted = int(batches), int(counted)


def keep_to(scheduler: Any, progress: StepProgress) -> None:
    """Makes ``scheduler.step()`` go as far as the job has come, by what the script does: it steps it once for so many batches."""
    its_step: Callable[..., None] = scheduler.step
    takes_metrics = "metrics" in inspect.signature(its_step).parameters
    first = int(getattr(scheduler, "last_epoch", 0))
    total = getattr(scheduler, "total_steps", None)  # It raises an error beyond that.
    pace = Pace()
    progress.paces.append(pace)
    own, job = progress.own, progress.job

    def move() -> None:
        if total is None or not (progress.shared or progress.resumed) or int(scheduler.last_epoch) < total:
            its_step()
            pace.counted += 1

    def step(*args: Any) -> None:
        nonlocal own, job
        moved, own, before, job = progress.own - own, progress.own, job, progress.job
        if job <= (before // progress.length + 1) * progress.length:  # Not over the end of a pass.
            pace.batches = max(pace.batches, moved)
        if progress.over or args and takes_metrics:
            return its_step(*args)
        if progress.void:
            return None
        if not progress.shared or moved == 0:
            return move() if not args else its_step(*args)
        passes, rest = divmod(job, progress.length)
        goal = passes * -(-progress.length // pace.batches) + rest // pace.batches
        goal = goal if total is None else min(goal, total - first)
        while (int(scheduler.last_epoch) - first if hasattr(scheduler, "last_epoch") else pace.counted) < goal:
            its_step()
            pace.counted += 1
        return None

    _take_over(scheduler, step)
