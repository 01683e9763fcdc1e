"""This process' place in the job: the set in which it works, its sets of ranks, and how both come about."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import recon
from recon import collective
from recon._ranks import least_size, numbers_of_launcher
from recon.collective import Group, MemberLost, SetChanged
from recon.meeting import Meeting

_LOOK_SECONDS = 0.05


class HorovodInternalError(RuntimeError):
    """A call has failed because somebody has gone, or the server has. `elastic.run` goes back to the last commit."""


class HostsUpdatedInterrupt(RuntimeError):
    """Somebody has come or gone between two calls. `elastic.run` goes on from here with those who are there now."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("processes have come or gone")
        self.skip_sync = skip_sync


def is_loss(error: recon.ReconError) -> bool:
    """Whether it says that somebody has gone, or the server: meeting anew helps. It does not where a limit is reached
    or a right is missing."""
    return isinstance(error, (MemberLost, SetChanged, recon.JobLost))


class ProcessSet:
    """Some ranks of the job, as a set of their own: `add_process_set` or `init` begins it. A deep copy is the set itself;
    unpickled it is the set of the same ranks in the process that does it, where there is one."""

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self._given = None if ranks is None else sorted(int(rank) for rank in ranks)
        self.process_set_id: int | None = None
        self._begun: Future[Group] | None = None  # None where this process is not in it.
        self._closed = False
        self._complete = 0  # So many members have calls that nobody is missing in.

    @property
    def ranks(self) -> list[int] | None:
        """Ranks of the job, those given as far as they are there now; None before init()."""
        if self._given is not None:
            return [rank for rank in self._given if context.group is None or rank < context.size]
        return list(range(context.size)) if context.group is not None else None

    def included(self) -> bool:
        """Whether this process is in it."""
        return self._begun is not None

    def size(self) -> int:
        """Number of members, as it was begun."""
        if self.ranks is None:
            raise ValueError("recon.hvd has not been initialized: call init() first")
        return len(self.ranks)

    def rank(self) -> int:
        """This process' rank in it; -1 if it is not in it."""
        return self.ranks.index(context.rank) if self.included() and self.ranks else -1

    def place_of(self, rank: int) -> int:
        """The rank in this set of the job's ``rank``. ValueError if that is not in it."""
        if self.ranks is None or rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in the process set of ranks {self.ranks}")
        return self.ranks.index(rank)

    def need(self) -> Group:
        """To make a call, when all members have begun the set. ValueError if this process cannot."""
        if self._begun is None:
            raise ValueError("recon.hvd has not been initialized: call init() first" if context.group is None else
                             f"rank {context.rank} is not in the process set of ranks {self.ranks}, or that was removed")
        try:
            return self._begun.result()
        except recon.ReconError as error:
            if is_loss(error):
                raise HorovodInternalError(str(error)) from error
            raise

    @contextlib.contextmanager
    def call(self, with_all: bool = False) -> Iterator[Group]:
        """The set, for a call. That somebody or the server has gone becomes Horovod's error; what is wrong in the call
        itself stays what it is. ``with_all``: the call means nothing without members that have joined or are lost."""
        group = self.need()
        try:
            if group.lost:  # Sizes are those of the set as it is now; check() tells whether that may be.
                group.update()
            if with_all and group.size < self.size():
                raise SetChanged(f"the call needs all {self.size()} members of '{group.name}', there are {group.size}")
            yield group
        except recon.ReconError as error:
            # Refused, of a set that has shrunk: its root is gone.
            if is_loss(error) or not group.alive or isinstance(error, recon.Refused) and group.size < self.size():
                raise HorovodInternalError(str(error)) from error
            raise

    def check(self, members: int) -> None:
        """After a call that ``members`` have taken part in: whether who is missing may be. HorovodInternalError if
        somebody has died and the job is not to go on without."""
        if members == self._complete:
            return
        group = self.need()
        group.update()
        if context.on_loss == "shrink":
            self._complete = members
            return
        missing = {place for place in range(self.size()) if place not in group.ranks}
        dead = {self.ranks[place] for place in missing} - context.joined()
        if dead:
            raise HorovodInternalError(f"rank {', '.join(map(str, sorted(dead)))} of '{group.name}' is lost")
        self._complete = members

    def begin(self, make: Callable[[Callable[[], bool]], Group] | None, number: int | None) -> None:
        """With the set that ``make`` waits for, which it is told when not to do any longer. Others are not waited for
        here, so that processes may begin several sets in any order."""
        self.process_set_id, self._begun, self._closed = number, None, False
        if make is None:
            return
        self._complete = len(self.ranks or [])
        begun = self._begun = Future()

        def wait() -> None:
            try:
                begun.set_result(make(lambda: self._closed))
            except BaseException as error:  # noqa: BLE001: the caller's to raise.
                begun.set_exception(error)

        threading.Thread(target=wait, name="recon-set", daemon=True).start()

    def hold(self, group: Group) -> None:
        """With a set that is there: that of all."""
        self.process_set_id, self._begun, self._closed = 0, Future(), False
        self._begun.set_result(group)
        self._complete = group.size

    def close(self) -> None:
        """Leaves the set."""
        begun, self._begun, self._closed = self._begun, None, True
        if begun is not None and begun.exception() is None:
            begun.result().close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        return self  # As of a model's layer that works in it.

    def __reduce__(self) -> tuple[Callable[..., ProcessSet], tuple[list[int] | None]]:
        return _set_of, (self._given,)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class Context:
    """One for the process. The main thread's; calls may be started by backward()'s threads."""

    def __init__(self) -> None:
        self.meeting: Meeting | None = None
        self.group: Group | None = None
        self.on_loss = "raise"
        self.worth = 0  # How many commits are in this process' elastic state; 0: it has not got everybody's yet.
        self.rank = self.size = 0
        self.local_rank = self.local_size = self.cross_rank = self.cross_size = 0
        self.homogeneous = True  # Whether all hosts have equally many processes.
        self.sets: list[ProcessSet] = []  # Beside the one of all.
        self.made: dict[tuple[int, ...], int] = {}  # How often a set of these ranks was begun since the meeting.
        self.joins = 0  # Since the meeting.
        self.last_id = 0
        self.pickle = False  # Whether this process takes objects that run their sender's code.
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self, process_sets: Sequence[ProcessSet], options: dict[str, Any]) -> None:
        if self.meeting is not None:
            return
        numbers = {"rank": options.pop("rank"), "size": options.pop("size")}
        if numbers["rank"] is None and options["min_size"] is None:
            numbers = numbers_of_launcher()
        least = options.pop("min_size") or least_size()
        self.on_loss = options.pop("on_loss") or os.environ.get("RECON_ON_LOSS", "raise")
        if self.on_loss not in ("raise", "shrink"):
            raise ValueError(f'on_loss is "{self.on_loss}", expected "raise" or "shrink"')
        self.pickle = options.pop("pickle")
        if self.pickle is None:
            self.pickle = os.environ.get("RECON_ALLOW_PICKLE", "").lower() in ("1", "true", "yes")
        member = os.environ.get("RECON_NAME") or f"{socket.gethostname()}-{os.getpid()}"
        # A set that shrinks, always: who has joined (join()) is not missed. ProcessSet.check() knows who may go.
        self.meeting = Meeting(options.pop("name") or os.environ.get("RECON_SET", "hvd"), min_size=least, member=member,
                               on_loss="shrink", by_name=True, **numbers, **options)
        try:
            self.meet()
            if self.pickle and not self.takes_pickles():
                raise recon.Refused("pickle=True (RECON_ALLOW_PICKLE): the server is open to everybody (--open), and whoever "
                                    "joins could run code here; start it without --open")
            for process_set in process_sets:
                self.add(process_set)
        except BaseException:
            self.end()
            raise

    def takes_pickles(self) -> bool:
        """Whether the script has said so, and nobody is a member of the set without a secret."""
        return self.pickle and self.group is not None and self.group.wants_secret

    def meet(self) -> None:
        """Everything anew, with those who are here: sets keep their ranks as far as these are there. `recon.JobLost`
        where they do not come in time."""
        assert self.meeting is not None
        self._close_sets()
        for optimizer in self.optimizers:
            optimizer.abandon()
        while True:
            self.group = self.meeting.meet(self.worth)
            try:
                hosts = self.group.tell(collective.host_label())
                break
            except recon.ReconError as error:
                alive = self.group.alive
                self.group.close()
                if alive and not is_loss(error):
                    raise
        self.joins = 0
        self._use(hosts)

    def _use(self, hosts: list[str]) -> None:
        """From now on calls are those of ``group``, on whose members' hosts they are."""
        assert self.group is not None
        self.rank, self.size = self.group.rank, self.group.size
        self.made.clear()
        world.hold(self.group)
        self._place(hosts)
        for process_set in self.sets:
            self._begin_set(process_set)

    def _place(self, hosts: list[str]) -> None:
        here = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        self.local_rank, self.local_size = here.index(self.rank), len(here)
        # One of each host that has so many: those of this local rank.
        counted: dict[str, int] = {}
        across = []
        for rank, host in enumerate(hosts):
            if counted.get(host, 0) == self.local_rank:
                across.append(rank)
            counted[host] = counted.get(host, 0) + 1
        self.homogeneous = len(set(counted.values())) == 1
        self.cross_rank, self.cross_size = across.index(self.rank), len(across)

    def add(self, process_set: ProcessSet) -> None:
        if process_set in self.sets or process_set is world:
            raise ValueError(f"{process_set} was added before")
        ranks = process_set._given or []
        if any(other._given == ranks for other in self.sets):
            raise ValueError(f"there is a process set of ranks {ranks} already")
        if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= self.size:
            raise ValueError(f"a process set of ranks {ranks}: expected some of 0 to {self.size - 1}, each once")
        self._begin_set(process_set)
        self.sets.append(process_set)

    def _begin_set(self, process_set: ProcessSet) -> None:
        assert self.group is not None
        whole, ranks, make = self.group, process_set.ranks or [], None
        self.last_id += 1
        if self.rank in ranks:
            # The ranks given name it, so that processes may begin sets in any order, also where of two sets the same
            # ranks are there now; and how many there were of these before.
            key = tuple(process_set._given or ranks)
            self.made[key] = self.made.get(key, 0) + 1
            name = f"{whole.name}/{self.made[key]}:{','.join(map(str, key))}"
            if len(name) > 200:
                name = f"{whole.name}/{self.made[key]}:{key[0]}..{key[-1]}:{zlib.crc32(str(key).encode()):x}"

            def make(closed: Callable[[], bool]) -> Group:
                return Group(name, rank=ranks.index(self.rank), size=len(ranks), on_loss="shrink", member=whole.member,
                             by_name=True, interrupted=lambda: closed() or whole.disturbed(), **self._shared())

        process_set.begin(make, self.last_id)

    def _shared(self) -> dict[str, Any]:
        assert self.meeting is not None
        shared = {key: value for key, value in self.meeting._shared.items() if key != "member"}
        return {**shared, "timeout": self.meeting.timeout}

    def remove(self, process_set: ProcessSet) -> bool:
        if process_set not in self.sets:
            return False
        self.sets.remove(process_set)
        process_set.close()
        process_set.process_set_id = None
        return True

    # Ranks that have no more data.

    def _joined_name(self) -> str:
        assert self.group is not None
        return f"{self.group.name}/joined"

    def joined(self) -> set[int]:
        """Ranks that wait in join()."""
        assert self.meeting is not None
        try:
            said = next((one for one in self.meeting.sets() if one["name"] == self._joined_name()), None)
        except recon.JobLost as error:
            raise HorovodInternalError(str(error)) from error
        return {int(name) for _, name in said["members"]} if said is not None else set()

    def join(self) -> int:
        """Leaves the work to others until they have joined, too; then all go on. The rank that came last."""
        assert self.meeting is not None and self.group is not None
        with world.call() as whole, Group(self._joined_name(), member=str(self.rank), **self._shared()) as done:
            # Whoever misses this rank from now on finds it among those who have joined.
            self._close_sets()
            self._await_joined(done)
            last = int(done.members[-1])
            # Those who are left, in their order. Who has come meanwhile is met later.
            ranks = sorted(int(name) for name in done.members)
            self.joins += 1
            name = f"{whole.name.split('/joined')[0]}/joined{self.joins}"
            self.group = Group(name, rank=ranks.index(self.rank), size=len(ranks), on_loss="shrink", member=whole.member,
                               by_name=True, **self._shared())
            self._use(self.group.tell(collective.host_label()))
        return last

    def _await_joined(self, done: Group) -> None:
        """Until all who are alive have joined and know it. HorovodInternalError when somebody dies who may not, or the
        server; HostsUpdatedInterrupt when the others have gone to a meeting."""
        assert self.meeting is not None and self.group is not None
        while True:
            lost = self.meeting.lost
            if lost is None or lost and self.on_loss == "raise":
                raise HorovodInternalError("somebody has gone while this rank had joined, or the server has")
            if done.disturbed():
                done.update()
            if done.size + len(lost) >= self.size:
                done.barrier()
                return
            if self.meeting.changed and self._have_gone_to_meet(len(lost)):
                raise HostsUpdatedInterrupt()
            time.sleep(_LOOK_SECONDS)

    def _have_gone_to_meet(self, lost: int) -> bool:
        """Whether nobody works any more where this process did, some have not joined, and one of those who worked
        there waits at the meeting."""
        assert self.meeting is not None and self.group is not None
        said = {one["name"]: one for one in self.meeting.sets()}
        if said.get(self.group.name, {"members": []})["members"]:
            return False
        if len(said.get(self._joined_name(), {"members": []})["members"]) + lost >= self.size:
            return False
        calls = said.get(self.meeting.hall_name, {"calls": []})["calls"]
        return any(name in here for call in calls for here in call["here"] for name in self.group.members)

    def _close_sets(self) -> None:
        for process_set in (*self.sets, world):
            process_set.close()

    def end(self) -> None:
        self._close_sets()
        if self.meeting is not None:
            self.meeting.close()
        self.meeting = self.group = None
        self.worth = 0
        self.sets.clear()


def _set_of(ranks: list[int] | None) -> ProcessSet:
    """Where a set of these ranks (None: of all) is unpickled: the one that this process has, or one that is to be added."""
    if ranks is None:
        return world
    return next((one for one in context.sets if one._given == ranks), None) or ProcessSet(ranks)


context = Context()
world = ProcessSet()
atexit.register(context.end)
