"""The same part of a script as a worker of a job, and in plain PyTorch on the same batches: what both return is to be
equal. Several workers are threads of this process, and so are the ranks that they are compared with, whose gradients are
averaged when backward has them, as DistributedDataParallel does. Environment: RECON_TEST_BIN, the programs."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data

import recon.torch as rt
from jobs import WAIT_SECONDS, Server
from torch_small import OPTIMIZER_ON

# Neither gradients nor parameters lose anything on their way.
EXACT = {"codec": "fp32", "pull_codec": "fp32"}
# Sums in another order differ by less than this part of a tensor's largest value, or of 1.
TOLERANCE = 1e-6


class _Recorded(rt.DataLoader):
    """Keeps the batches of each pass."""

    def __init__(self, meet: Callable[[], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passes: list[list[Any]] = []
        self._meet = meet

    def __iter__(self) -> Iterator[Any]:
        self.passes.append([])
        for batch in super().__iter__():
            if not self.passes[-1]:
                self._meet()
            self.passes[-1].append(batch)
            yield batch


class _Replayed:
    """A loader of plain PyTorch that gives those batches."""

    def __init__(self, recorded: _Recorded) -> None:
        self._passes = iter(recorded.passes)
        self._length = len(recorded)

    def __iter__(self) -> Iterator[Any]:
        return iter(next(self._passes, []))

    def __len__(self) -> int:
        return self._length


class Ranks:
    """Threads that average what they have, by weight. Each makes the same calls in the same order."""

    def __init__(self, size: int) -> None:
        self._given: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def meet(self) -> None:
        """Waits for the others."""
        self._barrier.wait(WAIT_SECONDS)

    def abort(self) -> None:
        """One of them has failed: nobody waits."""
        self._barrier.abort()

    def mean(self, rank: int, value: torch.Tensor, weight: float) -> torch.Tensor:
        self._given[rank] = (value.clone(), weight)
        self.meet()
        total = sum(weight for _, weight in self._given)
        mean = sum(value * (weight / total) for value, weight in self._given)
        self.meet()
        return mean


class Run:
    """What a script is given in place of what differs between a job and plain PyTorch; `before` is the job's, where this is
    plain PyTorch."""

    def __init__(self, server: str | None, before: Run | None = None, rank: int = 0, ranks: Ranks | None = None) -> None:
        self.is_job = before is None
        self.rank = rank
        self.jobs: list[rt.Job] = []
        self._server = server
        self._loaders: list[_Recorded] = []
        self._before = before
        self._ranks = ranks
        self._weight = 1.0

    def loader(self, dataset: Any, batch_size: int = 50, **options: Any) -> Any:
        if self._before is not None:
            return _Replayed(self._before._loaders.pop(0))
        meet = self._ranks.meet if self._ranks is not None else lambda: None
        self._loaders.append(_Recorded(meet, dataset, batch_size=batch_size, **options))
        return self._loaders[-1]

    def join(self, model: torch.nn.Module, optimizer: Any, loader: Any, **settings: Any) -> rt.Job | None:
        if self.is_job:
            self.jobs.append(rt.join(model, optimizer, loader, server=self._server, name=f"w{self.rank}",
                                     **{**EXACT, "optimizer_on": OPTIMIZER_ON, **settings}))
            return self.jobs[-1]
        if self._ranks is not None:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(self._average)
        return None

    def weigh(self, count: int) -> None:
        """How much the batch counts in the mean."""
        if self.is_job:
            self.jobs[-1].weigh(count)
        self._weight = float(count)

    @torch.no_grad()
    def _average(self, parameter: torch.Tensor) -> None:
        assert self._ranks is not None
        parameter.grad.copy_(self._ranks.mean(self.rank, parameter.grad, self._weight))

    def leave(self) -> None:
        for job in self.jobs:
            job.leave()


class Servers:
    """Each script has a server of its own; the next one starts meanwhile."""

    def __init__(self, binaries: str, *flags: str) -> None:
        self._binaries = binaries
        self._flags = flags
        self._next: Server | None = None
        self._starts: threading.Thread | None = None

    def take(self) -> Server:
        if self._starts is not None:
            self._starts.join()
        server = self._next if self._next is not None else Server(self._binaries, *self._flags)
        self._next = None
        self._starts = threading.Thread(target=self._start)
        self._starts.start()
        return server

    def _start(self) -> None:
        self._next = Server(self._binaries, *self._flags)

    def close(self) -> None:
        if self._starts is not None:
            self._starts.join()
        if self._next is not None:
            self._next.__exit__()


def run_job(script: Callable[[Run], Any], server: Server, workers: int = 1) -> tuple[list[Run], list[Any], list[str]]:
    """The script in a job: of each worker its run and what it has returned; and the warnings there were."""
    ranks = Ranks(workers) if workers > 1 else None
    runs = [Run(server.address, rank=rank, ranks=ranks) for rank in range(workers)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = _together(script, runs, ranks)
    return runs, results, [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]


def run_plain(script: Callable[[Run], Any], job: list[Run]) -> list[Any]:
    """The script in plain PyTorch, on the batches that the job's workers had."""
    ranks = Ranks(len(job)) if len(job) > 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _together(script, [Run(None, one, one.rank, ranks) for one in job], ranks)


def _together(script: Callable[[Run], Any], runs: list[Run], ranks: Ranks | None) -> list[Any]:
    """Each run's result; the first error of one."""
    results: list[Any] = [None] * len(runs)
    errors: list[BaseException] = []

    def go(run: Run) -> None:
        try:
            results[run.rank] = values_of(script(run))
        except BaseException as error:  # noqa: BLE001: it is raised below.
            errors.append(error)
            if ranks is not None:
                ranks.abort()
        finally:
            run.leave()

    threads = [threading.Thread(target=go, args=[run]) for run in runs[1:]]
    for thread in threads:
        thread.start()
    go(runs[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def values_of(result: Any) -> Any:
    """Copies of tensors; of a model those of its state."""
    if isinstance(result, torch.nn.Module):
        return values_of(dict(result.state_dict()))
    if isinstance(result, torch.Tensor):
        return result.detach().clone()
    if isinstance(result, dict):
        return {name: values_of(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [values_of(value) for value in result]
    return result


def difference(one: Any, other: Any, where: str = "the result") -> tuple[float, str]:
    """The largest one, by the size of what differs, and where it is."""
    if isinstance(one, dict):
        if set(one) != set(other):
            return float("inf"), f"{where} has {sorted(map(str, set(one) ^ set(other)))} on one side only"
        return max((difference(one[name], other[name], f"{where}, {name}") for name in one), default=(0.0, where))
    if isinstance(one, list):
        if len(one) != len(other):
            return float("inf"), f"{where} has {len(one)} entries, and {len(other)} in plain PyTorch"
        return max((difference(a, b, f"{where}, {i}") for i, (a, b) in enumerate(zip(one, other))), default=(0.0, where))
    if isinstance(one, (torch.Tensor, float, int)) and not isinstance(one, bool):
        ours, theirs = torch.as_tensor(one).double(), torch.as_tensor(other).double()
        if ours.shape != theirs.shape:
            return float("inf"), f"{where} has shape {list(ours.shape)}, and {list(theirs.shape)} in plain PyTorch"
        if ours.numel() == 0:
            return 0.0, where
        return float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max())), where
    return (0.0 if one == other else float("inf")), f"{where}: {one!r}, and {other!r} in plain PyTorch"


def binaries() -> str:
    return os.environ["RECON_TEST_BIN"]
