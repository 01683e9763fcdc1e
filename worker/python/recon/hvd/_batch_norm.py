"""BatchNorm over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ._context import ProcessSet, world
from ._ops import Sum, reduce_async


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2)).to(like.device)


def _count(values: torch.Tensor) -> torch.Tensor:
    """How many values a channel has."""
    return torch.tensor([values.numel() // max(1, values.shape[1])], dtype=torch.float64)


def _moments(wide: torch.Tensor) -> torch.Tensor:
    """Of this rank: how many values a channel has, their mean, and the sum of squares of what they differ from it."""
    over = [dim for dim in range(wide.dim()) if dim != 1]
    count = _count(wide)
    if count == 0:
        return torch.zeros(1 + 2 * wide.shape[1], dtype=torch.float64)
    variance, mean = torch.var_mean(wide, over, correction=0)
    return torch.cat([count, mean.double().cpu(), variance.double().cpu() * count])


def _summed(values: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    return reduce_async([values], None, Sum, None, "", 1.0, 1.0, process_set).wait()[0]


def _joint(moments: torch.Tensor, process_set: ProcessSet) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The same of all ranks: Chan et al.'s formula, which takes no large numbers from each other."""
    count, (mean, squares) = moments[:1], moments[1:].chunk(2)
    first = _summed(torch.cat([count, count * mean]), process_set)
    about = first[1:] / first[:1].clamp(min=1.0)
    # Who has gone meanwhile counts in what the others differ from, and in nothing else.
    off = mean - about
    total, off, squares = _summed(torch.cat([count, count * off, squares + count * off ** 2]), process_set).split(
        [1, len(mean), len(mean)])
    off = off / total.clamp(min=1.0)
    return float(total), about + off, (squares - total * off ** 2).clamp(min=0.0)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor,
                inverse: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
        wide = values.float() if values.element_size() < 4 else values
        mean, inverse = mean.to(wide.device, wide.dtype), inverse.to(wide.device, wide.dtype)
        ctx.save_for_backward(values, weight, mean, inverse)
        ctx.process_set = process_set
        result = (wide - _per_channel(mean, wide)) * _per_channel(inverse, wide)
        if weight is not None:
            result = result * _per_channel(weight, wide)
        if bias is not None:
            result = result + _per_channel(bias, wide)
        return result.to(values.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        values, weight, mean, inverse = ctx.saved_tensors
        wide = values.float() if values.element_size() < 4 else values
        gradient = gradient.to(wide.dtype)
        over = [dim for dim in range(wide.dim()) if dim != 1]
        normal = (wide - _per_channel(mean, wide)) * _per_channel(inverse, wide)
        sums = torch.cat([gradient.sum(over), (gradient * normal).sum(over)])
        of_bias, of_weight = sums.chunk(2)  # Of this rank's values: an optimizer's reduction adds the others'.
        result = None
        if ctx.needs_input_grad[0]:
            # With their count: somebody may have gone since forward.
            joint = _summed(torch.cat([_count(wide), sums.double().cpu()]), ctx.process_set)
            first, second = (joint[1:] / joint[:1].clamp(min=1.0)).to(wide.dtype).chunk(2)
            result = gradient - _per_channel(first, wide) - normal * _per_channel(second, wide)
            result = result * _per_channel(inverse if weight is None else inverse * weight, wide)
            result = result.to(values.dtype)
        return (result, None if weight is None else of_weight.to(weight.dtype),
                of_bias.to(weight.dtype) if weight is not None else None, None, None, None)


class SyncBatchNorm(_BatchNorm):
    """In place of BatchNorm1d, 2d and 3d: while it trains, mean and variance are those of the batches of all ranks
    together, which may have different sizes, and gradients are those of that batch. All ranks of ``process_set`` call
    it, forward and backward; who has joined or may be lost counts in neither from then on. In eval()
    no rank waits for others. Values travel as float64: 24 bytes a channel of each rank, and 16 backward."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_set: ProcessSet = world) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, values: torch.Tensor) -> None:
        if values.dim() < 2:
            raise ValueError(f"expected a batch of at least 2 dimensions, got {values.dim()}")

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(values)
        if not self.training:
            return functional.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias,
                                         self.running_mean is None, 0.0, self.eps)
        moments = _moments((values.float() if values.element_size() < 4 else values).detach())
        total, mean, squares = _joint(moments, self.process_set)
        if total <= 1:
            raise ValueError("expected more than 1 value of each channel on all ranks together")
        if self.running_mean is not None:
            self._track(mean, squares / (total - 1))
        inverse = torch.rsqrt(squares / total + self.eps)
        return _Normalize.apply(values, self.weight, self.bias, mean, inverse, self.process_set)

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        new = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), new)
        self.running_var.lerp_(variance.to(self.running_var), new)
