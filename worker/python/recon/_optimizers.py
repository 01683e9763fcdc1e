"""What the server does with gradients, as settings of a job. Definitions are PyTorch's (torch.optim)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD with dampening 0: ``lr``, ``momentum``, ``nesterov``, L2 ``weight_decay``."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def settings(self) -> list[tuple[str, str]]:
        kind = "sgd" if self.momentum == 0 else "nesterov" if self.nesterov else "momentum"
        settings = [("optimizer", kind), ("learning-rate", repr(float(self.lr)))]
        if self.momentum != 0:
            settings.append(("momentum", repr(float(self.momentum))))
        return settings + [("weight-decay", repr(float(self.weight_decay)))]


@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam: ``weight_decay`` is L2."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    kind: str = "adam"

    def settings(self) -> list[tuple[str, str]]:
        return [("optimizer", self.kind), ("learning-rate", repr(float(self.lr))),
                ("beta1", repr(float(self.betas[0]))), ("beta2", repr(float(self.betas[1]))),
                ("epsilon", repr(float(self.eps))), ("weight-decay", repr(float(self.weight_decay)))]


@dataclass(frozen=True)
class AdamW(Adam):
    """torch.optim.AdamW: ``weight_decay`` is decoupled."""

    weight_decay: float = 1e-2
    kind: str = "adamw"
