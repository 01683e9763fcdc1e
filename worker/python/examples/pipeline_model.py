"""The model, the data and the optimizer of pipeline.py. As a program it trains the same in one process."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from data import python_sources

WIDTH, CONTEXT = 32, 16


def options(what):
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="pieces of text in a step, over all workers")
    parser.add_argument("--micro-batches", type=int, default=2, help="of each worker: stages work on several at once")
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, x):
        return self.letters(x) + self.places.weight


class Block(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return super().forward(x, nn.Transformer.generate_square_subsequent_mask(CONTEXT), is_causal=True)


def build(stage):
    torch.manual_seed(stage)
    return [Embedding, Block, lambda: nn.Sequential(Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))][stage]()


def loss_of(scores, y):
    return F.cross_entropy(scores.reshape(-1, 256), y.reshape(-1))


text, _ = python_sources(CONTEXT, 40_000)


def pieces(batch, step, worker, workers):
    """This worker's part of a step's batch, which hangs on the step alone: a step that is done again is the same."""
    chosen = np.random.default_rng(step).choice(len(text), batch, replace=False)[worker::workers]
    x, y = zip(*(text[int(index)] for index in chosen))
    return torch.stack(x), torch.stack(y)


class Momentum:
    """SGD whose state is one vector."""

    def __init__(self, module, rate):
        self.module, self.rate, self.moving = module, rate, torch.zeros_like(parameters_to_vector(module.parameters()))

    def gradient(self):
        return torch.cat([p.grad.reshape(-1) for p in self.module.parameters()])

    def step(self, gradient):
        self.moving.mul_(0.9).add_(gradient)
        with torch.no_grad():
            values = parameters_to_vector(self.module.parameters())
            vector_to_parameters(values - self.rate * self.moving, self.module.parameters())
        self.module.zero_grad()


def main():
    args = options(__doc__)
    model = nn.Sequential(*(build(stage) for stage in range(3)))
    optimizer, losses = Momentum(model, args.lr), []
    for step in range(args.steps):
        x, y = pieces(args.batch, step, 0, 1)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step(optimizer.gradient())
        losses.append(loss.item())
    print(f"loss {np.mean(losses[-10:]):.4f}")


if __name__ == "__main__":
    main()
