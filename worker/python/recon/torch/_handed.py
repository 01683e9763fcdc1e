"""Which batches a ``step()`` is of: a batch belongs to the step that follows its backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recon._leases import Batch


@dataclass
class _Entry:
    batch: Batch
    loop: Any  # That gave it.
    begun: bool = False  # Of the core.
    lost: bool = False  # Nothing of it is pushed: others compute it, or it is a spare one.
    spare: bool = False  # It was never one of the job's.


def _own(entries: Sequence[_Entry]) -> list[Batch]:
    return [entry.batch for entry in entries if not entry.lost]


class Handed:
    """The batches that the script has from its loader and has not stepped.

    A backward takes the oldest that had none: a script may read ahead, or read several and go through them. Hooks of the
    parameters count backward passes; between two batches that the script reads more of them are of one batch. How many
    batches it reads ahead shows at a loop's first ``step()``; where more are left at a later one, the script has passed
    over the oldest.

    Threads: any may read batches, and backward's hooks run on any; the caller serializes all else.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], whole: bool) -> None:
        """`parameters`: whose gradients tell of backward passes; none where `take_next` does. `whole`: each step is of all
        batches since the one before."""
        self._entries: list[_Entry] = []
        self._whole = whole
        self._settled = 0  # Entries, from the oldest, whose backward is over.
        self._ahead_of_backward = 0  # The most batches that were read ahead of a backward before the loop's first step().
        self._came = [0] * len(parameters)  # How often each has got a gradient since then.
        self._counts = False  # Whether any ever has: none do where the script writes .grad itself.
        self._ahead_of_step = 0  # Batches that were read ahead of the loop's first step().
        self._stepping = threading.get_ident()
        self._reading = self._stepping
        self._loop: Any = None  # The one that gave the newest.
        self._stepped = False  # Whether a step was of a batch of it.
        self._trained: Any = None  # The one whose batch had the last backward that was a step.
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def came(_: torch.Tensor) -> None:
            self._counts = True
            self._came[number] += 1

        return came

    @property
    def batches(self) -> list[Batch]:
        """Those that are the job's, the oldest first."""
        return _own(self._entries)

    @property
    def entries(self) -> Sequence[_Entry]:
        """What the script has, the oldest first."""
        return self._entries

    @property
    def first(self) -> _Entry:
        """Of the entries."""
        return self._entries[0]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def backwards(self) -> bool:
        """Whether there was a backward since the last step."""
        return self._settled > 0 or max(self._came, default=0) > 0

    @property
    def threaded(self) -> bool:
        """Whether another thread reads than the one that steps."""
        return self._reading != self._stepping

    def _used(self) -> int:
        return min(len(self._entries), self._settled + max(self._came, default=0))

    def _reset(self) -> None:
        self._settled, self._came = 0, [0] * len(self._came)

    def is_next(self) -> bool:
        """Whether what is handed out now is computed at once: nothing was read ahead of it."""
        self._reading = threading.get_ident()
        return self._whole or (0 if self.threaded else self._used()) == len(self._entries)

    def hand(self, batch: Batch, loop: Any, begun: bool, spare: bool = False) -> None:
        """The script gets it."""
        self._reading = threading.get_ident()
        if not self.threaded:
            used = self._used()
            self._reset()
            self._settled = used
        if loop is not self._loop:
            self._loop, self._stepped, self._ahead_of_backward = loop, False, 0
        self._entries.append(_Entry(batch, loop, begun, lost=spare, spare=spare))

    def forget(self) -> None:
        """The job is over: what the script still has is not of it."""
        self._entries = []
        self._reset()

    def any_begun(self) -> bool:
        """Whether one of them has begun."""
        return any(entry.begun for entry in self._entries)

    def forget_begun(self) -> None:
        """What has begun is dropped."""
        for entry in self._entries:
            entry.begun = False

    def next_to_begin(self) -> _Entry | None:
        """The oldest, where it has not begun."""
        entry = next((entry for entry in self._entries if not entry.lost), None)
        return None if entry is None or entry.begun else entry

    def take(self) -> tuple[list[_Entry], list[Batch]]:
        """At ``step()``: what it is of, and what the script has passed over before that."""
        self._stepping = threading.get_ident()
        used = len(self._entries)
        if self._counts and not self._whole:
            used = min(used, max(1, self._used()))
        left = len(self._entries) - used
        over = 0
        if not self.threaded:
            self._ahead_of_step = min(left, self._ahead_of_step) if self._stepped else left
            over = left - self._ahead_of_step
        self._stepped = self._stepped or any(entry.loop is self._loop for entry in self._entries[over:over + used])
        taken, passed = self._entries[over:over + used], self._entries[:over]
        self._entries = self._entries[over + used:]
        self._reset()
        return taken, _own(passed)

    def take_next(self) -> _Entry | None:
        """At the end of a backward that is a step of all workers: what it is of. None: of the batch before, once more."""
        self._stepping = threading.get_ident()
        self._reset()
        if not self._entries:
            return None
        entry = self._entries.pop(0)
        self._trained = entry.loop
        if not self._stepped and not self.threaded:
            self._ahead_of_backward = max(self._ahead_of_backward, len(self._entries))
        return entry

    def note_step(self) -> list[Batch]:
        """At ``step()`` after such backward passes. What the script has passed over before that."""
        over = 0
        if not self.threaded:
            if not self._stepped:
                self._ahead_of_step = len(self._entries)
            over = max(0, len(self._entries) - self._ahead_of_step)
        self._stepped = self._stepped or self._trained is self._loop
        passed, self._entries = self._entries[:over], self._entries[over:]
        return _own(passed)

    def take_used(self) -> list[Batch]:
        """Those that had a backward, and see no step."""
        used = self._used()
        taken, self._entries = self._entries[:used], self._entries[used:]
        self._reset()
        return _own(taken)

    def take_passed_over(self) -> list[Batch]:
        """When the script asks for more and there is none: those that it has passed over. It may read ahead so far."""
        if self.threaded or not self._stepped or self._whole:
            return []
        used = self._used()
        over = max(0, len(self._entries) - used - max(self._ahead_of_step, self._ahead_of_backward))
        taken = self._entries[used:used + over]
        del self._entries[used:used + over]
        return _own(taken)

    def take_left_behind(self) -> list[_Entry]:
        """When the script asks for more, where `take_next` takes batches: those that it has passed over."""
        if self.threaded or not self._stepped:
            return []
        over = max(0, len(self._entries) - max(self._ahead_of_step, self._ahead_of_backward))
        taken, self._entries = self._entries[:over], self._entries[over:]
        return taken

    def reads_ahead(self) -> bool:
        """Whether the script has batches of the job that had no backward yet."""
        return not self._whole and any(not entry.lost for entry in self._entries[self._used():])

    def has(self, batch: Batch) -> bool:
        """Whether the script has this one."""
        return any(entry.batch is batch for entry in self._entries)

    def trains(self, loop: Any) -> bool:
        """Whether a backward was of a batch of this loop, or a step."""
        return self._loop is loop and self._stepped or self._trained is loop or any(entry.loop is loop for entry in self._entries[:self._used()])

    def take_unused(self, loop: Any) -> list[Batch]:
        """Those of a loop that had no backward: it is left, or trains nothing."""
        taken = [entry for entry in self._entries[self._used():] if entry.loop is loop]
        self._keep_without(taken)
        return _own(taken)

    def take_left(self) -> tuple[list[Batch], list[Batch]]:
        """When a loop begins: what those before have left, as batches that the script has passed over, and as those of a
        loop without a backward, which has trained nothing. What the script reads ahead from loop to loop stays."""
        if self.threaded and threading.get_ident() == self._reading:
            return [], []
        left = self._entries[self._used():]
        if self._stepped:
            left = left[:max(0, len(left) - self._ahead_of_step)]
        self._keep_without(left)
        trained = [entry for entry in left if self._stepped or entry.loop is not self._loop]
        return _own(trained), _own([entry for entry in left if not any(entry is one for one in trained)])

    def _keep_without(self, taken: Sequence[_Entry]) -> None:
        gone = {id(entry) for entry in taken}
        self._entries = [entry for entry in self._entries if id(entry) not in gone]
