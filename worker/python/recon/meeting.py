"""Where the processes of a job find each other again, whenever some come or go.

    meeting = recon.meeting.Meeting("job", min_size=2)        # or with rank= and size=
    while True:
        group = meeting.meet()                                 # everybody who is here, as a fixed set
        try:
            train(group)                                       # with sets of its own, as group.split() makes them
            break
        except recon.ReconError:                               # somebody has gone
            group.close()                                      # and those sets: so others hear of it at once

A meeting is an elastic set (or one of fixed ranks) that carries nothing but the question who is here; work is done
in fixed sets with a name of their own each time. So whoever comes disturbs nobody's work: `changed` says it, and the
members meet again when it suits them. Whoever has been in the job longest has the lowest rank, where ranks are not
given.

Not thread-safe. Times are seconds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import recon
from recon import _environment, collective
from recon.collective import CallTimeout, Group, MemberLost, SetChanged

__all__ = ["Meeting"]

_LOOK_SECONDS = 0.02
# A server that refuses at once is asked again so much later each time.
_PAUSE_SECONDS_MAX = 1.0


class Meeting:
    """This process as one that comes to the meetings of the job ``name``.

    With ``rank`` and ``size`` they begin when every rank is there, and wait for who is lost until another process
    has taken that rank. Without, they begin with ``min_size`` processes. ``on_loss``, ``patience``, ``server``,
    ``member`` and ``tls`` are as for `recon.collective.Group`; ``on_loss`` is that of the sets in which work is done.
    ``by_name`` is that of these sets, too. A meeting waits for ``timeout`` seconds for others, and for a server that has
    gone; so does a call of these sets.
    """

    def __init__(self, name: str, *, server: str | None = None, rank: int | None = None, size: int | None = None,
                 min_size: int = 1, member: str | None = None, on_loss: str = "raise", patience: float = 0.0,
                 timeout: float = 600.0, tls: tuple[str, str, str, bool, str, str] | None = None,
                 by_name: bool = False) -> None:
        self.name, self.timeout, self.on_loss, self.by_name = name, timeout, on_loss, by_name
        self.hall_name = f"{name}/meeting"
        self._shared: dict[str, Any] = {"server": server, "member": member, "patience": patience, "tls": tls}
        self._place: dict[str, Any] = {"rank": rank, "size": size, "min_size": min_size}
        self.number = 0  # Of the last meeting; it grows from one to the next.
        self.numbers: list[int] = []  # Of each member of the last meeting, by rank: which was its last one before. 0: none.
        self.worths: list[int] = []  # The same, what it has said of itself.
        self._hall: Group | None = self._enter(time.monotonic() + timeout)

    def _enter(self, end: float) -> Group:
        pause, said = _LOOK_SECONDS, 0.0
        while True:
            try:
                return Group(self.hall_name, timeout=max(1.0, end - time.monotonic()), **self._shared, **self._place)
            except CallTimeout:
                raise
            except recon.JobLost as error:  # There is no server, or it has died while the set had not begun.
                now = time.monotonic()
                left = end - now
                if left <= 0:
                    raise
                if not said or now - said > _environment.stall_seconds():
                    said = now
                    print(f"recon: {error}; tries again for {left:.0f} s more", file=sys.stderr, flush=True)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    @property
    def changed(self) -> bool:
        """Whether somebody has come or gone since the last meeting, or the server has."""
        return self._hall is None or self._hall.disturbed()

    @property
    def lost(self) -> list[int] | None:
        """Ranks at the last meeting of those who have gone since; None where the server has."""
        if self._hall is None or not self._hall.alive:
            return None
        return [rank for rank in self._hall.lost if rank in self._hall.ranks]

    @property
    def senior(self) -> int:
        """The lowest rank among those whose state is worth most."""
        return self.worths.index(max(self.worths))

    def meet(self, worth: int = 0) -> Group:
        """Waits until all who are here have come, and returns them as a set of fixed ranks. ``worth`` says what this
        process' state is worth, 0 that it has none yet: `senior` tells whose to take. `CallTimeout` after ``timeout``
        seconds, `recon.Refused` where the set cannot be. Close what it returned the last time before."""
        end = time.monotonic() + self.timeout
        while True:
            try:
                if self._hall is None:
                    self._hall = self._enter(end)
                return self._gather(self._hall, worth, end)
            except (SetChanged, MemberLost) as why:
                # Who is lost is not told at the same moment everywhere; and there may be too few now.
                self._await_change(why, end)
            except CallTimeout:
                raise
            except recon.JobLost:
                self.close()
                self._hall = None
                if time.monotonic() > end:
                    raise

    def _gather(self, hall: Group, worth: int, end: float) -> Group:
        rank, size = hall.update()
        handle = hall.all_gather(np.array([[self.number, worth]], np.int64), sizes=[1] * size, async_op=True)
        numbers, worths = handle.wait(max(1.0, end - time.monotonic())).T.tolist()
        number = max(numbers) + 1
        group = Group(f"{self.name}/{hall.epoch}.{number}", rank=hall.ranks.index(rank), size=size, on_loss=self.on_loss,
                      timeout=max(1.0, end - time.monotonic()), interrupted=hall.disturbed, by_name=self.by_name,
                      **self._shared)
        group.timeout = self.timeout  # What was left of it was for the beginning.
        self.number, self.numbers, self.worths = number, numbers, worths
        return group

    def _await_change(self, why: Exception, end: float) -> None:
        """Returns when there is another epoch, and after a second: the connection may be gone, too."""
        assert self._hall is not None
        until = time.monotonic() + 1.0
        while not self._hall.changed and self._hall.alive and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        if time.monotonic() > end:
            raise CallTimeout(f"no meeting of '{self.name}' within {self.timeout:g} s: {why}") from why

    def close(self) -> None:
        """Comes to no meeting any more; others are told."""
        if self._hall is not None:
            self._hall.close()

    def sets(self) -> list[dict]:
        """As `recon.collective.sets()`, of the job's server."""
        return collective.sets(self._shared["server"], self._shared["tls"])
