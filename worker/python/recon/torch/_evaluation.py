"""The evaluation that the job has asked this worker for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from recon._leases import metric_sums


def evaluate_for(core: Any, model: torch.nn.Module, evaluate: Callable[..., dict[str, Any]], lease: int) -> None:
    """Calls ``evaluate(model)`` without gradients and in ``eval()``, and answers the lease with its metrics. Modules that
    the script has in ``eval()``, a frozen BatchNorm say, stay there. If `evaluate` raises, another worker is asked."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    core.pause()
    try:
        with torch.no_grad():
            sums = metric_sums(evaluate(model))
    except BaseException:
        core.abandon(lease)
        raise
    finally:
        core.resume()
        for module in training:
            module.training = True
    core.end_evaluation(lease, sums)
