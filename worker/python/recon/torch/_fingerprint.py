"""What tells one data set from another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
import torch.utils.data

SAMPLES = 256
# Of a table, whose rows may have to be decoded.
TABLE_ROWS = 32


def fingerprint(dataset: Any) -> str:
    """16 hexadecimal digits of data that is in memory, and of Hugging Face's, of which a few rows are read: its own
    fingerprint is drawn where a transform cannot be hashed. Empty for others: to read them here would open files that
    processes of a DataLoader must open themselves."""
    digest = hashlib.blake2b(digest_size=8)
    return digest.hexdigest() if _add(dataset, digest) else ""


def _add(dataset: Any, digest: Any) -> bool:
    if isinstance(dataset, torch.utils.data.Subset):
        digest.update(np.asarray(list(dataset.indices), dtype=np.int64).tobytes())
        return _add(dataset.dataset, digest)
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        return all(_add(part, digest) for part in dataset.datasets)
    if isinstance(dataset, torch.utils.data.TensorDataset):
        return all(_add_rows(tensor, digest) for tensor in dataset.tensors)
    if isinstance(dataset, torch.Tensor):
        return _add_rows(dataset, digest)
    if isinstance(dataset, np.ndarray):
        return dataset.dtype != object and _add_rows(torch.from_numpy(np.ascontiguousarray(dataset)), digest)
    if isinstance(getattr(dataset, "_fingerprint", None), str) and hasattr(dataset, "__len__"):
        return _add_table(dataset, digest)
    return False


def _add_table(dataset: Any, digest: Any) -> bool:
    """Of Hugging Face's: its size and columns, and rows as they are stored, which no transform has changed."""
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)
    digest.update(f"{len(dataset)} {getattr(dataset, 'features', '')}".encode())
    for at in range(0, len(dataset), max(1, len(dataset) // TABLE_ROWS)):
        _add_value(dataset[at], digest)
    return True


def _add_value(value: Any, digest: Any) -> None:
    """What a cell has; nothing of objects whose text would be an address."""
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            digest.update(str(name).encode())
            _add_value(value[name], digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}]".encode())
        for one in value:
            _add_value(one, digest)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes):
        digest.update(value)
    elif hasattr(value, "tobytes"):  # An image.
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode() if type(value).__repr__ is not object.__repr__ else type(value).__name__.encode())


def _add_rows(tensor: torch.Tensor, digest: Any) -> bool:
    digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.dim() == 0 or len(tensor) == 0:
        return True
    rows = torch.arange(0, len(tensor), max(1, len(tensor) // SAMPLES), device=tensor.device)
    digest.update(tensor.detach()[rows].contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return True
