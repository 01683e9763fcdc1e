"""Arrays as collectives take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


class Memory:
    """Where an array's values lie: contiguous, of a type that collectives know. Keeps the array."""

    def __init__(self, array: Any) -> None:
        self.array = array
        if hasattr(array, "data_ptr"):  # A PyTorch tensor, whatever version: bfloat16 has no other way.
            if array.device.type != "cpu":
                raise TypeError(f"an array on {array.device}: collectives take those on the CPU")
            self.address, self.count = array.data_ptr(), array.numel()
            self.dtype, self.shape = str(array.dtype).removeprefix("torch."), tuple(array.shape)
            self.contiguous = array.is_contiguous()
        else:
            self.address, self.count = array.ctypes.data, array.size
            self.dtype, self.shape = str(array.dtype), array.shape
            self.contiguous = array.flags.c_contiguous

    @staticmethod
    def of(array: Any) -> Memory:
        """For reading."""
        if not hasattr(array, "data_ptr") and not isinstance(array, np.ndarray):
            array = np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
        memory = Memory(array)
        if memory.contiguous:
            return memory
        return Memory(array.contiguous() if hasattr(array, "data_ptr") else np.ascontiguousarray(array))

    def like(self, shape: Sequence[int] | None = None) -> Any:
        """A new array of the same kind."""
        shape = self.shape if shape is None else tuple(shape)
        return self.array.new_empty(shape) if hasattr(self.array, "data_ptr") else np.empty(shape, self.array.dtype)

    @property
    def row_bytes(self) -> int:
        """Of what lies at one place of the first dimension."""
        width: int = self.array.element_size() if hasattr(self.array, "data_ptr") else self.array.itemsize
        return math.prod(self.shape[1:]) * width


def rows(memory: Memory) -> int:
    if not memory.shape:
        raise ValueError("a single value has no first dimension: give an array of one value")
    return memory.shape[0]


def bytes_of(memory: Memory) -> np.ndarray:
    array = memory.array
    if hasattr(array, "data_ptr"):
        array = array.reshape(-1).view(__import__("torch").uint8).numpy()
    return array.reshape(-1).view(np.uint8)
