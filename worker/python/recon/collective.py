"""Collectives over named sets of processes, through recon's servers.

    group = recon.collective.Group("workers", rank=rank, size=4)     # or without rank and size: elastic
    total = group.all_reduce(gradient, "mean")
    handle = group.all_reduce(gradient, async_op=True); ...; total = handle.wait()

Arrays are NumPy's, PyTorch's on the CPU, or anything else that speaks DLPack there. All members call the same
operations in the same order; several sets run side by side. What goes wrong raises

* `MemberLost` - a member that the call needs has gone; the error names it.
* `SetChanged` - members came or went since this process last knew (`Group.update()`); the error names them.
* `recon.Refused` - members call different things, or a call cannot be: the error shows both sides.
* `CallTimeout` - no outcome in time; the error says who is missing, and this process has left the set.
* `recon.JobLost` - the connection to a server is gone, and with it the membership.

server/collective/COLLECTIVES.md says what holds when somebody dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from recon import _announced, _core, _environment, _topk, adasum
from recon._core import MemberLost, SetChanged
from recon._memory import Memory as _Memory, bytes_of as _bytes, rows as _rows
from recon._places import host_label, numa_label, rack_label, sets_of_settings, switch_label

__all__ = ["CallTimeout", "Group", "Handle", "MemberLost", "SetChanged", "host_label", "numa_label", "predefined",
           "rack_label", "sets", "switch_label"]

# As worker/collective/call.h numbers them.
_KINDS = {name: number for number, name in enumerate(
    ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "barrier",
     "exchange", "send", "recv"))}
_WIRES = {"": "", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "float16": "float16", "bfloat16": "bfloat16"}
# Who waits for something beside an outcome looks for it so often.
_LOOK_SECONDS = 0.1
# A set that has not begun after so long says for whom it waits, or that there is no server; again after twice the time, at most a minute.
_BEGIN_TOLD_SECONDS = 10.0


class CallTimeout(_core.JobLost):
    """No outcome in time."""


class Handle:
    """A call under way."""

    def __init__(self, group: Group, call: Any, result: Any, kept: tuple, finish: Callable[[], Any] | None = None) -> None:
        self._group, self._call, self._result, self._kept, self._finish = group, call, result, kept, finish
        self.members = 0  # How many count in the result, when it is done.

    def done(self) -> bool:
        return self._call.done

    def wait(self, timeout: float | None = None) -> Any:
        """The call's result. `CallTimeout` after so many seconds (the group's own, by default)."""
        timeout = self._group.timeout if timeout is None else timeout
        # Of calls that match by name nobody can tell that members mean different things. Whoever waits can.
        stalls = min(timeout, _environment.stall_seconds()) if self._group._by_name else timeout
        if not self._call.wait(stalls):
            if stalls < timeout:
                print(f"recon: rank {self._group.rank} of set '{self._group.name}' has waited for {stalls:g} s: "
                      f"{self._group._core.who_is_missing()}", file=sys.stderr, flush=True)
            if not self._call.wait(timeout - stalls):
                self._group._give_up(f"no outcome within {timeout:g} s")
        with self._group._own_sizes():
            self.members = self._call.result()
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


class Group:
    """This process as a member of the set ``name``.

    With ``rank`` and ``size`` the set has those ranks, and work begins when all are there. Without, it is elastic:
    members come and go and are numbered anew each time, and work begins with ``min_size`` of them. ``on_loss``:
    "raise", or "shrink" to go on without who is lost (a mean divides by those who are there). A member that is not
    heard for ``patience`` seconds is lost (recon-server's ``--evict-after`` by default); it is heard as long as its
    process lives, whatever Python does. While the set has not begun, ``interrupted()`` is asked ten times a second:
    once it says yes, `SetChanged` is raised. ``by_name``: calls of one ``name`` match, and of those without one calls
    of one operation, whatever others come between them on each member, from any thread; a name is one call's at a
    time. Calls of one ``order`` come in it at all members, whatever their names, and take no more of the servers' memory
    than one call. All members say the same of this. ``tls``: files of the certificate, its key and the CA, whether plain
    text may go to other machines, a file with a token, and one of revoked certificates; empty for none. Where nothing is
    given RECON_SERVER, RECON_TLS_CERT and the like count; on the server's machine its user needs no token (ACCESS.md).
    """

    def __init__(self, name: str, *, server: str | None = None, rank: int | None = None, size: int | None = None,
                 min_size: int = 1, member: str | None = None, on_loss: str = "raise", patience: float = 0.0,
                 timeout: float = 300.0, tls: tuple[str, str, str, bool, str, str] | None = None,
                 interrupted: Callable[[], bool] | None = None, by_name: bool = False) -> None:
        if (rank is None) != (size is None):
            raise ValueError("rank and size go together: both, or neither for an elastic set")
        if on_loss not in ("raise", "shrink"):
            raise ValueError(f'on_loss is "{on_loss}", expected "raise" or "shrink"')
        if rank is not None and (rank < 0 or size <= rank):
            raise ValueError(f"rank {rank} of {size} members")
        self.name, self.timeout = name, timeout
        member = member or f"{socket.gethostname()}-{os.getpid()}"
        self.member, self.on_loss = member, on_loss
        self._again = {"server": server, "tls": tls, "on_loss": on_loss, "patience": patience, "by_name": by_name}
        self._by_name = by_name
        self._largest_sums = _topk.LargestSums()
        self._splits = 0
        self._handles: list[Handle] = []
        self._handles_lock = threading.Lock()
        self._core = _core.Group(server or _environment.server(), tls or _environment.tls(), name, member, rank is None, rank or 0,
                                 min_size if size is None else size, on_loss == "shrink", patience)
        self._await_begun(interrupted)
        self.update()

    def _await_begun(self, interrupted: Callable[[], bool] | None) -> None:
        begun, pause = time.monotonic(), min(_BEGIN_TOLD_SECONDS, _environment.stall_seconds())
        end, tell = begun + self.timeout, begun + pause
        while True:
            left = end - time.monotonic()
            if self._core.await_begun(max(0.0, min(left, _LOOK_SECONDS))):
                return
            now = time.monotonic()
            if now > tell and left > 0:
                tell = now + (pause := min(2 * pause, 60.0))
                print(f"recon: set '{self.name}' has not begun for {now - begun:.0f} s:", self._core.who_is_missing(), file=sys.stderr, flush=True)
            if interrupted is not None and interrupted():
                self._core.close()
                raise SetChanged(f"set '{self.name}': not begun, as others have gone meanwhile")
            if left <= 0:
                self._give_up(f"not begun within {self.timeout:g} s")

    def update(self) -> tuple[int, int]:
        """From now on calls are those of the set as it is now. This member's rank, and the number of members."""
        self.epoch, self._place, members = self._core.acknowledge()
        self.members = [member for _, member in members]
        self.ranks = [rank for rank, _ in members]
        self.rank, self.size = self.ranks[self._place], len(members)
        self.wants_secret = self._core.wants_secret  # Nobody is a member who has shown neither token nor certificate.
        return self.rank, self.size

    @property
    def changed(self) -> bool:
        """Whether members came or went so that calls raise `SetChanged` until `update()`."""
        return self._core.changed

    @property
    def lost(self) -> list[int]:
        """Ranks that have gone since `update()`, in the order in which this was heard."""
        return self._core.lost

    @property
    def alive(self) -> bool:
        """Whether this process is a member still: it has not left, and the connection is there."""
        return self._core.alive

    def disturbed(self) -> bool:
        """Whether anything is other than at the last `update()`: members, or this membership."""
        return not self.alive or self.changed or bool(self.lost)

    def tell(self, text: str) -> list[str]:
        """What each member told, by place."""
        line = np.frombuffer((json.dumps(text) + "\n").encode(), np.uint8)
        return [json.loads(told) for told in self.all_gather(line).tobytes().decode().splitlines()]

    def split(self, label: str) -> Group:
        """Those members that give the same label, as a set of their own: all members call it. Ranks are in the
        order of this set's, from 0 on. `MemberLost` or `SetChanged` if somebody goes meanwhile."""
        labels = self.tell(label)
        mine = [place for place, told in enumerate(labels) if told == label]
        self._splits += 1
        # The name says where the set comes from; two labels that are cut to one text have other first members.
        shown = "".join(letter if letter.isprintable() else "?" for letter in label[:60])
        name = f"{self.name[-150:]}/{self.epoch}.{self._splits}.{mine[0]} {shown}"
        return Group(name.encode()[:250].decode(errors="ignore"), rank=mine.index(self._place), size=len(mine),
                     member=self.member, interrupted=self.disturbed, timeout=self.timeout, **self._again)

    def by_host(self) -> Group:
        """The members on this host: those with the same `host_label()`."""
        return self.split(host_label())

    def by_rack(self) -> Group:
        """The members in this rack: those with the same `rack_label()`."""
        return self.split(rack_label())

    def by_numa(self, gpu: str | None = None) -> Group:
        """The members at this NUMA node: those with the same `numa_label(gpu)`."""
        return self.split(numa_label(gpu))

    def by_switch(self, gpu: str | None = None) -> Group:
        """The members whose GPUs are behind one PCIe switch: those with the same `switch_label(gpu)`."""
        return self.split(switch_label(gpu))

    # Every operation returns its result, or with async_op a Handle whose wait() does.

    def all_reduce(self, array: Any, op: str = "sum", *, out: Any = None, wire: str = "", name: str = "",
                   order: str = "", async_op: bool = False) -> Any:
        """Sum, mean, min, max, product or adasum over all members; ``out`` may be ``array``. ``wire``: "fp16" or
        "bf16" halves what travels of float32, both ways; "int8" makes a quarter of it, of a sum or a mean: 8 bits a value
        and a scale for each 256, rounded so that the mean is exact. "topk:0.01" sends the hundredth of each member's
        values that is largest, and keeps the others for the next sum of that ``name``, of which it needs one; it is for sums
        and means of float32 and float64 in sets that do not shrink. For adasum see `recon.adasum`; it has no ``wire`` and no
        ``async_op``."""
        if op == "adasum":
            if wire or async_op:
                raise ValueError("adasum has neither wire nor async_op")
            return adasum.all_reduce(self, array, out, name)
        if wire.startswith("topk:"):
            return self._largest(array, op, out, wire, name, order, async_op)
        return self._reduction("all_reduce", array, op, out, wire, name, async_op, order=order)

    def _largest(self, array: Any, op: str, out: Any, wire: str, name: str, order: str, async_op: bool) -> Any:
        memory, fraction = _Memory.of(array), _topk.fraction_of(wire)
        if op not in ("sum", "mean") or memory.dtype not in ("float32", "float64"):
            raise ValueError(f'wire "{wire}" is for sums and means of float32 and float64, not for a {op} of {memory.dtype}')
        if not name:
            raise ValueError(f'wire "{wire}" needs a name: what is not sent is kept under it')
        if self.on_loss == "shrink":  # Some may have all values when others have not: they cannot begin again.
            raise ValueError(f'wire "{wire}" cannot go on without who is lost: it goes with on_loss="raise"')
        result, finish = self._output(memory, out, memory.shape)

        def fill(total: np.ndarray) -> Any:
            _bytes(_Memory(result))[:] = total.view(np.uint8)
            return result if finish is None else finish()

        call = self._largest_sums.start(self, _bytes(memory).view(memory.dtype), fraction, op == "mean", name, order, fill)
        return call if async_op else call.wait()

    def reduce(self, array: Any, root: int, op: str = "sum", *, out: Any = None, wire: str = "", name: str = "",
               async_op: bool = False) -> Any:
        """The same for rank ``root`` alone; what others get means nothing."""
        return self._reduction("reduce", array, op, out, wire, name, async_op, root)

    def _reduction(self, kind: str, array: Any, op: str, out: Any, wire: str, name: str, async_op: bool,
                   root: int = 0, order: str = "") -> Any:
        memory = _Memory.of(array)
        result, finish = self._output(memory, out, memory.shape)
        if wire not in _WIRES:
            raise ValueError(f'wire is "{wire}", expected "", "fp16", "bf16", "int8" or "topk:F"')
        return self._run(kind, memory, result, async_op, op=op, wire=_WIRES[wire], name=name, order=order,
                         count=memory.count, shape=str(list(memory.shape)), peer=root, finish=finish)

    def broadcast(self, array: Any, root: int = 0, *, out: Any = None, of: str = "", name: str = "",
                  async_op: bool = False) -> Any:
        """Rank ``root``'s array; those of others say shape and type. ``of`` says in errors what the array's values are,
        where it holds the bytes of others; it is the same at all members."""
        memory = _Memory.of(array)
        result, finish = self._output(memory, out, memory.shape)
        return self._run("broadcast", memory, result, async_op, name=name, count=memory.count,
                         shape=_shape(memory.shape, of), peer=root, finish=finish)

    def all_gather(self, array: Any, *, sizes: Sequence[int] | None = None, of: str = "", name: str = "",
                   order: str = "", async_op: bool = False) -> Any:
        """All members' arrays one after another along the first dimension, in which they may differ. ``sizes`` of
        that by member saves asking for them. ``of`` as for `broadcast`."""
        memory, sizes = self._known_sizes(array, sizes, name)
        inner = int(np.prod(memory.shape[1:]))
        result = memory.like((sum(sizes), *memory.shape[1:]))
        return self._run("all_gather", memory, result, async_op, name=name, order=order, count=memory.count,
                         out_counts=[size * inner for size in sizes], shape=_shape(["*", *memory.shape[1:]], of))

    def reduce_scatter(self, array: Any, op: str = "sum", *, sizes: Sequence[int] | None = None, wire: str = "",
                       name: str = "", async_op: bool = False) -> Any:
        """This member's part of the reduced array, cut along the first dimension: into equal parts, the first ones
        longer by one where it does not come out even, or into those of ``sizes``."""
        memory = _Memory.of(array)
        rows = _rows(memory)
        if sizes is None:
            sizes = [rows // self.size + (1 if place < rows % self.size else 0) for place in range(self.size)]
        if sum(sizes) != rows:
            raise ValueError(f"sizes are {sum(sizes)} together, the array has {rows} rows")
        inner = int(np.prod(memory.shape[1:]))
        result = memory.like((sizes[self._place], *memory.shape[1:]))
        return self._run("reduce_scatter", memory, result, async_op, op=op, wire=_WIRES[wire], name=name,
                         count=sizes[self._place] * inner, in_counts=[size * inner for size in sizes],
                         shape=str(list(memory.shape)))

    def gather(self, array: Any, root: int = 0, *, sizes: Sequence[int] | None = None, name: str = "",
               async_op: bool = False) -> Any:
        """As all_gather, at rank ``root``; others get None."""
        memory, sizes = self._known_sizes(array, sizes, name, root)
        inner = int(np.prod(memory.shape[1:]))
        result = memory.like((sum(sizes), *memory.shape[1:])) if self.rank == root else None
        return self._run("gather", memory, result, async_op, name=name, count=memory.count, peer=root,
                         out_counts=[size * inner for size in sizes], shape=str(["*", *memory.shape[1:]]))

    def scatter(self, array: Any, root: int = 0, *, out: Any, sizes: Sequence[int] | None = None, name: str = "",
                async_op: bool = False) -> Any:
        """To ``out`` its part of rank ``root``'s array, cut along the first dimension into equal parts or ``sizes``;
        others' ``array`` means nothing."""
        target = _Memory(out)
        counts: list[int] = []
        memory = target
        if self.rank == root:
            memory = _Memory.of(array)
            sizes = [_rows(memory) // self.size] * self.size if sizes is None else sizes
            if sum(sizes) != _rows(memory):
                raise ValueError(f"{_rows(memory)} rows do not make parts of {list(sizes)}")
            counts = [size * int(np.prod(memory.shape[1:])) for size in sizes]
        if not target.contiguous:
            raise ValueError("out is not contiguous")
        return self._run("scatter", memory, out, async_op, name=name, count=target.count, in_counts=counts, peer=root)

    def all_to_all(self, arrays: Sequence[Any], *, out: Sequence[Any] | None = None, name: str = "",
                   async_op: bool = False) -> Any:
        """To each member one array; a list of what each had for this one. Without ``out`` shapes may differ in their
        first dimension, and are asked for, before this returns."""
        if len(arrays) != self.size:
            raise ValueError(f"{len(arrays)} arrays for {self.size} members")
        memories = [_Memory.of(array) for array in arrays]
        rows = [_rows(memory) for memory in memories] if out is None else []
        if out is None:
            table = self._exchange(np.array(rows, np.int64), name)
            came = table[:, self._place].tolist()
            self._check_announced(came, memories[0])
            out = [memories[0].like((count, *memories[0].shape[1:])) for count in came]
        flat = np.concatenate([_bytes(memory) for memory in memories]) if memories else np.empty(0, np.uint8)
        targets = [_Memory(array) for array in out]
        received = np.empty(sum(_bytes(target).size for target in targets), np.uint8)

        def finish() -> list[Any]:
            at = 0
            for target in targets:
                view = _bytes(target)
                view[:] = received[at:at + view.size]
                at += view.size
            return [target.array for target in targets]

        return self._run("all_to_all", _Memory(flat), received, async_op, name=name,
                         in_counts=[_bytes(memory).size for memory in memories],
                         out_counts=[_bytes(target).size for target in targets],
                         shape=_shape([], f"{memories[0].dtype}{['*', *memories[0].shape[1:]]}"), finish=finish)

    def barrier(self, *, name: str = "", async_op: bool = False) -> Any:
        return self._run("barrier", None, None, async_op, name=name)

    def send(self, array: Any, to: int, *, tag: int = 0, async_op: bool = False) -> Any:
        """To rank ``to``, which calls recv() for it. Messages of one tag come in their order."""
        memory = _Memory.of(array)
        return self._run("send", memory, None, async_op, count=memory.count, peer=to, tag=tag)

    def recv(self, out: Any, source: int, *, tag: int = 0, async_op: bool = False) -> Any:
        """Into ``out``, which has the message's type and size."""
        target = _Memory(out)
        if not target.contiguous:
            raise ValueError("out is not contiguous")
        return self._run("recv", target, out, async_op, count=target.count, peer=source, tag=tag)

    def close(self) -> None:
        """Leaves the set. Calls under way end with an error."""
        self._core.close()
        self._handles.clear()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _output(self, memory: _Memory, out: Any, shape: Sequence[int]) -> tuple[Any, Any]:
        """Where the result goes, and what is to be done with it afterwards."""
        if out is None:
            return memory.like(), None
        target = _Memory(out)
        if target.shape != tuple(shape) or target.dtype != memory.dtype:
            raise ValueError(f"out is {target.dtype}{list(target.shape)}, the result is {memory.dtype}{list(shape)}")
        if target.contiguous:
            return out, None
        result = memory.like()

        def finish() -> Any:
            out[...] = result
            return out

        return result, finish

    def _known_sizes(self, array: Any, sizes: Sequence[int] | None, name: str,
                     root: int | None = None) -> tuple[_Memory, Sequence[int]]:
        """The array, and how many rows each member has. `recon.Refused` where ``root``, or everybody, cannot take as many as
        others say."""
        memory = _Memory.of(array)
        if sizes is None:
            sizes = self._exchange(np.array([_rows(memory)], np.int64), name)[:, 0].tolist()
            if root is None or root == self.rank:
                self._check_announced(sizes, memory)
        return memory, sizes

    def _check_announced(self, rows: Sequence[int], memory: _Memory) -> None:
        """Rows like this array's, by member."""
        _announced.check(rows, memory.row_bytes, _announced.ranks(self.ranks))

    def _exchange(self, values: np.ndarray, name: str) -> np.ndarray:
        """A row of each member. `SetChanged` where there are fewer than this process knows of."""
        table = np.empty((self.size, values.size), values.dtype)
        size, handle = self.size, self._run("exchange", _Memory(values), table, True, name=name, count=values.size,
                                            shape=str(list(values.shape)))
        handle.wait()
        if handle.members != size:
            raise SetChanged(f"set '{self.name}' has {handle.members} members now, this process knows of {size}")
        return table

    @contextlib.contextmanager
    def _own_sizes(self) -> Iterator[None]:
        """What is refused because sizes or a root are those of the set before a loss is `SetChanged`."""
        try:
            yield
        except _core.Refused as error:
            if self.disturbed():
                raise SetChanged(f"set '{self.name}' has changed meanwhile: {error}") from error
            raise

    def _run(self, kind: str, memory: _Memory | None, result: Any, async_op: bool, *, op: str = "sum", wire: str = "",
             name: str = "", order: str = "", shape: str = "", count: int = 0, in_counts: Sequence[int] = (),
             out_counts: Sequence[int] = (), peer: int = 0, tag: int = 0,
             finish: Callable[[], Any] | None = None) -> Any:
        target = None if result is None else _Memory(result)
        with self._own_sizes():
            call = self._core.start(_KINDS[kind], op, memory.dtype if memory else "uint8", wire, name, self._by_name, order, shape,
                                    memory.address if memory else 0, target.address if target else 0, count,
                                    list(in_counts), list(out_counts), peer, tag)
        handle = Handle(self, call, result, (memory, target), finish)
        # The memory stays until the call is done, whether somebody waits or not.
        with self._handles_lock:
            self._handles = [other for other in self._handles if not other.done()]
            self._handles.append(handle)
        return handle if async_op else handle.wait()

    def _give_up(self, what: str) -> None:
        missing = self._core.who_is_missing()
        self._core.leave("a call of its took too long")
        raise CallTimeout(f"set '{self.name}': {what}: {missing}")


def _shape(shape: Sequence[Any], of: str) -> str:
    """As errors say it behind the type of the array."""
    return f" of {of}" if of else str(list(shape))


def sets(server: str | None = None, tls: tuple[str, str, str, bool, str, str] | None = None) -> list[dict]:
    """All sets of a job: ``members`` that are there, those that are ``lost`` from the set as it is and why, who is
    ``waiting`` to be one, and which ``calls`` wait for whom and for how long. Members are rank and name."""
    return _core.sets(server or _environment.server(), tls or _environment.tls())


def predefined(rank: int, **options: Any) -> dict[str, Group]:
    """The sets that the job's settings name and that ``rank`` is in, by name: RECON_SETS="encoder=0-3 ends=0,7", the same
    for all processes. Ranks in a set count from 0, in the order in which its settings have them. ``options`` are those of
    `Group`. ValueError, with what is wrong, for other settings."""
    mine = {name: ranks for name, ranks in sets_of_settings(os.environ.get("RECON_SETS", "")).items() if rank in ranks}
    groups: dict[str, Group] = {}
    try:
        # In the order of names at all processes: one that waits for a set to begin keeps nobody from beginning another.
        for name, ranks in sorted(mine.items()):
            groups[name] = Group(name, rank=ranks.index(rank), size=len(ranks), **options)
    except BaseException:
        for group in groups.values():
            group.close()
        raise
    return groups
