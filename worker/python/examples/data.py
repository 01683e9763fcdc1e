"""Data for the examples, from what the machine has: Fashion-MNIST, Python's own sources, and generated ratings."""

import glob
import gzip
import os
import struct
import sysconfig

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

# Where Debian's package dataset-fashion-mnist puts it.
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"


def read_idx(path):
    """One file of the IDX format, gzipped: two zeros, a type (8 is unsigned bytes), the number of dimensions, sizes."""
    with gzip.open(path) as file:
        data = file.read()
    zeros, kind, dimensions = struct.unpack(">HBB", data[:4])
    if (zeros, kind) != (0, 8):
        raise ValueError(f"{path}: it begins with {data[:4].hex()}, which is not IDX of unsigned bytes")
    shape = struct.unpack(f">{dimensions}I", data[4:4 + 4 * dimensions])
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions)
    if values.size != np.prod(shape):
        raise ValueError(f"{path}: {values.size} values, its header says {shape}")
    return values.reshape(shape)


def fashion_mnist(folder=FASHION_MNIST):
    """60,000 images to train with and 10,000 to test with, each 1 x 28 x 28, and their classes."""
    def part(name):
        images = torch.from_numpy(read_idx(f"{folder}/{name}-images-idx3-ubyte.gz").astype(np.float32))
        labels = torch.from_numpy(read_idx(f"{folder}/{name}-labels-idx1-ubyte.gz").astype(np.int64))
        # In place: memory that is touched for the first time takes longer than the arithmetic.
        return TensorDataset(images.unsqueeze(1).div_(255).sub_(0.286).div_(0.353), labels)
    return part("train"), part("t10k")


class Text(Dataset):
    """Pieces of a text, and the same one byte further: what a language model predicts."""

    def __init__(self, text, context):
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.context = context

    def __len__(self):
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index):
        piece = self.text[index * self.context:(index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


def python_sources(context, size):
    """So many bytes of the sources of Python's library, to train with, and a tenth of that to test with."""
    text = b""
    for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py"))):
        with open(path, "rb") as file:
            text += file.read()
        if len(text) >= size + size // 10:
            return Text(text[:size], context), Text(text[size:size + size // 10], context)
    raise ValueError(f"the sources of Python's library have {len(text)} bytes, {size + size // 10} are wanted")


def ratings(users, items, count, seed=1):
    """Ratings of 1 to 5 that follow a few hidden tastes, with noise: pairs of a user and an item, and what is given."""
    random = np.random.default_rng(seed)
    tastes, traits = random.normal(size=(users, 4)), random.normal(size=(items, 4))
    # Few items get most of the ratings.
    pairs = np.stack([random.integers(users, size=count), (items * random.random(count) ** 2).astype(np.int64)], axis=1)
    score = (tastes[pairs[:, 0]] * traits[pairs[:, 1]]).sum(axis=1) / 2
    given = np.clip(np.round(3 + score + 0.1 * random.normal(size=count)), 1, 5)
    split = count - count // 10
    pairs, given = torch.from_numpy(pairs), torch.from_numpy(given.astype(np.float32))
    return TensorDataset(pairs[:split], given[:split]), TensorDataset(pairs[split:], given[split:])
