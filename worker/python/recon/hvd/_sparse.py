"""Sums of the largest values of each rank alone, where what a rank has not sent is kept for its next ones (Stich et al.,
"Sparsified SGD with Memory", NeurIPS 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ._context import ProcessSet, context
from ._ops import Average, Handle, Op, TopK, host


class SparseSums:
    """What an optimizer sends, by the names of its calls, and what it has kept back. Each member sends an int32 index and
    a value for each of its largest values, and gets those of all. Members add them up in one order: to the same bits.
    Who is lost or joins meanwhile ends a call with an error. ValueError where that is not to be one."""

    def __init__(self, compression: TopK, op: Op, prescale: float, postscale: float, process_set: ProcessSet) -> None:
        self._fraction, self._op, self._prescale, self._postscale = compression.fraction, op, prescale, postscale
        self._set = process_set
        self._kept: dict[str, torch.Tensor] = {}
        self._check()

    def _check(self) -> None:
        # Some members may have got all values when others have not: they cannot begin again with those who are left.
        if context.on_loss == "shrink":
            raise ValueError('Compression.topk() cannot go on without who is lost: it goes with on_loss="raise"')

    def forget(self) -> None:
        """Keeps nothing any more, as after an error: that was of steps that are done again."""
        self._kept.clear()

    def start(self, gradients: Sequence[torch.Tensor], name: str, order: str) -> Handle:
        """Into the gradients themselves, by the time of `synchronize`."""
        self._check()  # It may be older than init().
        whole = torch.cat([host(gradient).reshape(-1) for gradient in gradients]) * self._prescale
        whole = whole.float() if whole.element_size() < 4 else whole
        if name in self._kept:
            whole += self._kept[name]
        count = math.ceil(self._fraction * whole.numel())
        # What is not a number is among the largest, so that all see it.
        places = whole.abs().topk(count, sorted=False).indices
        values = whole[places]
        whole[places] = 0
        self._kept[name] = whole
        packed = torch.cat([places.int().view(torch.uint8), values.view(torch.uint8)])
        with self._set.call() as group:
            call = group.all_gather(packed, sizes=[len(packed)] * group.size, name=name, order=order, async_op=True,
                                    of=f"the largest {count} of {whole.numel()} {str(whole.dtype).removeprefix('torch.')}")

        def finish() -> list[torch.Tensor]:
            total = torch.zeros_like(whole)
            every = call.wait().split(len(packed))
            for part in every:
                total.index_add_(0, part[:4 * count].clone().view(torch.int32),
                                 part[4 * count:].clone().view(whole.dtype))
            total *= self._postscale / (len(every) if self._op is Average else 1)
            for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients])):
                gradient.detach().copy_(part.view(gradient.shape))
            return list(gradients)

        return Handle([call], self._set, finish)
