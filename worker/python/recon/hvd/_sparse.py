"""Gradients as sums of the largest values of each rank alone (recon/_topk.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recon import _topk

from ._context import ProcessSet, context
from ._ops import Average, Handle, Op, TopK, host


class SparseSums:
    """What an optimizer sends, by the names of its calls, and what it has kept back. Who is lost or joins meanwhile ends a call with an error. ValueError where that is not to be one."""

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
        self._kept[name] = whole
        packed = _topk.take_largest(whole.numpy(), self._fraction)
        with self._set.call() as group:
            size = group.size
            call = group.all_gather(packed, sizes=[len(packed)] * size, name=name, order=order, async_op=True,
                                    of=f"the largest {self._fraction:g} of {whole.numel()} {whole.numpy().dtype}")

        def finish() -> list[torch.Tensor]:
            total = torch.zeros_like(whole)
            every = call.wait().reshape(size, -1)
            for part in every:
                _topk.add(part, total.numpy())
            total *= self._postscale / (len(every) if self._op is Average else 1)
            for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients])):
                gradient.detach().copy_(part.view(gradient.shape))
            return list(gradients)

        return Handle([call], self._set, finish)
