#!/usr/bin/env python3
"""Writes optimizer_golden.txt: what PyTorch's optimizers make of fixed parameters and gradients.

Run once with Debian's python3-torch; the numbers are checked in. One line a case:
  NAME LR MOMENTUM BETA1 BETA2 EPS WEIGHT_DECAY STEPS | parameters | gradients of each step... | results
Floats are hexadecimal, so that nothing is lost.
"""

import pathlib

import torch

SIZE = 37
STEPS = 5

CASES = [
    ("sgd", dict(lr=0.1), lambda p, k: torch.optim.SGD(p, **k)),
    ("sgd", dict(lr=0.1, weight_decay=0.01), lambda p, k: torch.optim.SGD(p, **k)),
    ("momentum", dict(lr=0.05, momentum=0.9, weight_decay=0.001), lambda p, k: torch.optim.SGD(p, **k)),
    ("nesterov", dict(lr=0.05, momentum=0.9), lambda p, k: torch.optim.SGD(p, nesterov=True, **k)),
    ("adam", dict(lr=0.001), lambda p, k: torch.optim.Adam(p, **k)),
    ("adam", dict(lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1), lambda p, k: torch.optim.Adam(p, **k)),
    ("adamw", dict(lr=0.001, weight_decay=0.01), lambda p, k: torch.optim.AdamW(p, **k)),
]


def text(tensor):
    return " ".join(float(x).hex() for x in tensor)


def main():
    torch.manual_seed(7)
    lines = []
    for name, settings, make in CASES:
        parameter = torch.nn.Parameter(torch.randn(SIZE))
        gradients = [torch.randn(SIZE) * 0.1 for _ in range(STEPS)]
        betas = settings.get("betas", (0.9, 0.999))
        head = [name, settings["lr"], settings.get("momentum", 0.0), *betas, settings.get("eps", 1e-8),
                settings.get("weight_decay", 0.0), STEPS]
        before = text(parameter.detach())
        optimizer = make([parameter], settings)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        parts = [" ".join(map(str, head)), before, *map(text, gradients), text(parameter.detach())]
        lines.append(" | ".join(parts))
    pathlib.Path(__file__).with_name("optimizer_golden.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
