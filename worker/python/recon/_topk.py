"""Sums of the largest values of each member alone, where what a member has not sent is kept for its next ones (Stich et
al., "Sparsified SGD with Memory", NeurIPS 2018). A member sends an int32 index and a value for each, and gets those of
all. Members add them up in one order: to the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def take_largest(values: np.ndarray, fraction: float) -> np.ndarray:
    """The largest of these (1-D) as bytes; they are 0 then. What is not a number is among the largest, so that all see
    it."""
    count = math.ceil(fraction * values.size)
    places = np.argpartition(np.abs(values), values.size - count)[values.size - count:] if count else np.empty(0, int)
    sent = values[places]
    values[places] = 0
    return np.concatenate([places.astype(np.int32).view(np.uint8), sent.view(np.uint8)])


def add(packed: np.ndarray, to: np.ndarray) -> None:
    """What one `take_largest` has taken."""
    count = packed.size // (4 + to.itemsize)
    to[packed[:4 * count].copy().view(np.int32)] += packed[4 * count:].copy().view(to.dtype)


class LargestSum:
    """A call under way; as `recon.collective.Handle`."""

    def __init__(self, call: Any, sizes: int, back: Callable[[], None], finish: Callable[[np.ndarray], Any]) -> None:
        self._call, self._sizes, self._back, self._finish = call, sizes, back, finish
        self._result: Any = None
        self._error: Exception | None = None
        self.members = 0

    def done(self) -> bool:
        return self._call is None or self._call.done()

    def wait(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        if self._call is not None:
            try:
                parts = self._call.wait(timeout).reshape(self._sizes, -1)
            except Exception as error:
                if self._call.done():  # Nobody has a sum with it: what was to be sent is of the next one.
                    self._error = error
                    self._back()
                raise
            self.members = self._call.members
            self._result, self._call = self._finish(parts), None
        return self._result


class LargestSums:
    """What a group has kept back, by the names of its calls."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def start(self, group: Any, values: np.ndarray, fraction: float, mean: bool, name: str, order: str,
              finish: Callable[[np.ndarray], Any]) -> LargestSum:
        """``finish`` gets the sum, or the mean, and makes the call's result of it. Where it raises, or the call does, the
        values count as given: they are of the next sum, whose caller does not give them again."""
        before = self._kept.get(name)
        if before is not None and (before.size != values.size or before.dtype != values.dtype):
            raise ValueError(f"'{name}' has {values.size} {values.dtype} now, and had {before.size} {before.dtype}")
        kept = self._kept[name] = values.copy() if before is None else before + values
        sent = take_largest(kept, fraction)
        try:
            call = group.all_gather(sent, sizes=[sent.size] * group.size, name=name, order=order, async_op=True,
                                    of=f"the largest {fraction:g} of {kept.size} {kept.dtype}")
        except Exception:
            add(sent, kept)
            raise

        def summed(parts: np.ndarray) -> Any:
            total = np.zeros(kept.size, kept.dtype)
            for part in parts:
                add(part, total)
            return finish(total / total.dtype.type(len(parts)) if mean else total)

        def back() -> None:
            add(sent, self._kept.get(name, kept))  # Another call of the name may have begun since.
        return LargestSum(call, group.size, back, summed)

    def forget(self) -> None:
        """Keeps nothing any more, as after an error: that was of steps that are done again."""
        self._kept.clear()


def fraction_of(wire: str) -> float:
    """Of "topk:0.01". ValueError for anything else."""
    try:
        fraction = float(wire.removeprefix("topk:"))
    except ValueError:
        fraction = math.nan
    if not 0 < fraction <= 1:
        raise ValueError(f'wire is "{wire}", expected "topk:" and the fraction that is sent, above 0 up to 1, as in "topk:0.01"')
    return fraction
