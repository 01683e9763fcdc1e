"""Adasum: a sum of gradients that does not add up what they have in common (Maleki et al., "Scaling Distributed
Training with Adaptive Summation", 2020, arXiv:2006.02924, section 3).

Of two gradients it is

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

which is their sum where they are orthogonal, and their mean where they are equal. Of more it is taken of pairs, then
of pairs of these: of ranks 0 to n-1 the first 2^k < n and the others, each part the same way.

    result = group.all_reduce(gradient, "adasum")                 # one tensor
    results = recon.adasum.all_reduce_many(group, gradients)      # each tensor by itself, all at once

Each member gets a part of all members' values (all_to_all), the members sum up the products of their parts (one
all_reduce of 24 bytes a tensor and pair for each level of the tree), and give each other the results (all_gather):
each byte goes to a server twice and comes back twice, whatever the size of the set. Floating point only. Products
are summed in float64. All members get the same bits.

Who is lost meanwhile ends it with an error, also in a set that shrinks: a tree has no result without its leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from recon.collective import Group

__all__ = ["all_reduce", "all_reduce_many", "pairs"]


def pairs(first: int, end: int) -> list[list[tuple[int, int]]]:
    """The tree over ranks ``first`` to ``end`` - 1, by level from the leaves: which two are combined, into the first
    of them."""
    count = end - first
    if count < 2:
        return []
    half = 1 << ((count - 1).bit_length() - 1)
    levels = [list(level) for level in pairs(first, first + half)]
    for number, level in enumerate(pairs(first + half, end)):
        levels[number] += level
    return [*levels, [(first, first + half)]]


def all_reduce(group: Group, array: Any, out: Any = None, name: str = "") -> Any:
    """Adasum of one array over all members; into ``out``, which may be ``array``, or a new one of its kind.
    ValueError for integers or an ``out`` of another type or shape."""
    result = all_reduce_many(group, [array], name)[0]
    if out is None:
        return result
    if tuple(out.shape) != tuple(result.shape) or out.dtype != result.dtype:
        raise ValueError(f"out is {out.dtype}{list(out.shape)}, the result is {result.dtype}{list(result.shape)}")
    out[...] = result
    return out


def all_reduce_many(group: Group, arrays: Sequence[Any], name: str = "") -> list[Any]:
    """Adasum over all members of each array by itself, as the paper has it for a model's layers. New arrays of the
    same kinds (NumPy's, PyTorch's on the CPU), shapes and types. ``name`` is that of all calls which it makes."""
    parts = [_flat(array) for array in arrays]
    if not parts:
        return []
    ends = np.cumsum([part.size for part in parts])
    wide = np.float64 if any(part.dtype == np.float64 for part in parts) else np.float32
    whole = np.concatenate([part.astype(wide, copy=False) for part in parts])
    # By place in the set, whatever ranks are missing in it.
    cuts = [len(whole) * place // group.size for place in range(group.size + 1)]
    rows = group.all_to_all([whole[a:b] for a, b in zip(cuts, cuts[1:])], name=name)
    mine = group.ranks.index(group.rank)
    sections = _sections(ends, cuts[mine], cuts[mine + 1])
    for level in pairs(0, group.size):
        products = np.array([_products(rows[a], rows[b], sections) for a, b in level])
        group.all_reduce(products, out=products, name=name)
        for (a, b), (ab, aa, bb) in zip(level, products):
            rows[a] = _combined(rows[a], rows[b], ab, aa, bb, sections)
    result = group.all_gather(rows[0], sizes=[b - a for a, b in zip(cuts, cuts[1:])], name=name)
    return [_like(array, values) for array, values in zip(arrays, np.split(result, ends[:-1]))]


def _flat(array: Any) -> np.ndarray:
    """The values, those of 16 bits as float32."""
    if hasattr(array, "data_ptr"):
        if not array.is_floating_point():
            raise ValueError(f"adasum of {array.dtype}: only of floating point")
        array = array.detach().reshape(-1)
        return (array.float() if array.element_size() < 4 else array).numpy()
    array = np.asarray(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"adasum of {array.dtype}: only of floating point")
    return array.reshape(-1)


def _like(array: Any, values: np.ndarray) -> Any:
    if hasattr(array, "data_ptr"):
        result = array.detach().new_empty(array.shape)
        result.copy_(array.new_tensor(values).view(array.shape))
        return result
    array = np.asarray(array)
    return values.reshape(array.shape).astype(array.dtype)


def _sections(ends: np.ndarray, begin: int, end: int) -> list[slice]:
    """Where each tensor's values lie in the part from ``begin`` to ``end`` of them all; some have none."""
    starts = np.concatenate([[0], ends[:-1]])
    return [slice(max(0, min(int(a), end) - begin), max(0, min(int(b), end) - begin)) for a, b in zip(starts, ends)]


def _products(a: np.ndarray, b: np.ndarray, sections: list[slice]) -> np.ndarray:
    """Of each tensor a.b, a.a and b.b: 3 rows."""
    table = np.empty((3, len(sections)))
    for number, section in enumerate(sections):
        x, y = a[section].astype(np.float64), b[section].astype(np.float64)
        table[:, number] = x @ y, x @ x, y @ y
    return table


def _combined(a: np.ndarray, b: np.ndarray, ab: np.ndarray, aa: np.ndarray, bb: np.ndarray,
              sections: list[slice]) -> np.ndarray:
    result = np.empty_like(a)
    for number, section in enumerate(sections):
        # A gradient of zeros has nothing in common with another.
        of_a = 1 - ab[number] / (2 * aa[number]) if aa[number] > 0 else 1.0
        of_b = 1 - ab[number] / (2 * bb[number]) if bb[number] > 0 else 1.0
        result[section] = a.dtype.type(of_a) * a[section] + a.dtype.type(of_b) * b[section]
    return result
