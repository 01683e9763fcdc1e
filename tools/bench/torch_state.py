#!/usr/bin/python3
"""State of real training, and what PyTorch takes to save and load it. Used by recon-bench durability.

make DIR BYTES   trains ResNet-50s (random 64x64 images, Adam) from several seeds until parameters and both moments have
                 that many bytes; writes DIR/shapes ("name dim dim..." a line) and DIR/state.bin (all parameters, then all
                 first moments, then all second moments, FP32)
save DIR FILE    prints the seconds that torch.save and fsync of that state take
load FILE        prints the seconds that torch.load takes when the file is not in the page cache
"""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

STEPS, BATCH, IMAGE = 8, 8, 64


class Bottleneck(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition, 2015, figure 5 right."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.body(x) + self.skip(x))


def resnet50():
    layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def train(seed):
    """Name, parameter and both of Adam's moments of every tensor."""
    torch.manual_seed(seed)
    model = resnet50()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(64, 3, IMAGE, IMAGE), torch.randint(0, 1000, (64,))
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(labels)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        yield f"seed{seed}.{name}", parameter.detach(), state["exp_avg"], state["exp_avg_sq"]


def make(directory, size):
    tensors, seed, have = [], 0, 0
    while have < size:
        tensors += train(seed)
        seed += 1
        have = sum(3 * 4 * t[1].numel() for t in tensors)
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/state.bin.tmp", "wb") as out:
        for role in (1, 2, 3):
            for tensor in tensors:
                tensor[role].numpy().tofile(out)
    with open(f"{directory}/shapes", "w", encoding="ascii") as out:
        for name, parameter, _, _ in tensors:
            out.write(f"{name} {' '.join(map(str, parameter.shape))}\n")
    os.rename(f"{directory}/state.bin.tmp", f"{directory}/state.bin")


def save(directory, file):
    state, flat = {}, torch.from_file(f"{directory}/state.bin", size=os.path.getsize(f"{directory}/state.bin") // 4)
    shapes = [line.split() for line in open(f"{directory}/shapes", encoding="ascii")]
    at = 0
    for role in ("", ".exp_avg", ".exp_avg_sq"):
        for name, *shape in shapes:
            shape = [int(dim) for dim in shape]
            size = torch.Size(shape).numel()
            state[name + role] = flat[at:at + size].reshape(shape).clone()
            at += size
    start = time.perf_counter()
    with open(file, "wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    directory_fd = os.open(os.path.dirname(file), os.O_RDONLY)
    os.fsync(directory_fd)
    return time.perf_counter() - start


def load(file):
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    state = torch.load(file)
    seconds = time.perf_counter() - start
    assert len(state) > 0
    return seconds


def main():
    verb, *arguments = sys.argv[1:] or ["help"]
    if verb == "make" and len(arguments) == 2:
        make(arguments[0], int(arguments[1]))
    elif verb == "save" and len(arguments) == 2:
        print(save(*arguments))
    elif verb == "load" and len(arguments) == 1:
        print(load(*arguments))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
