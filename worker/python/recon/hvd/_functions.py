"""What goes from one rank to all before training, and objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from recon import _announced, _objects

from ._context import ProcessSet, context, world
from ._movements import allgather, broadcast_, broadcast_async_

# Small tensors travel together, up to so many bytes.
_TOGETHER_BYTES = 4 << 20


def broadcast_parameters(params: dict[str, Any] | Iterable[tuple[str, torch.Tensor]], root_rank: int,
                         process_set: ProcessSet = world) -> None:
    """Rank ``root_rank``'s tensors into those of the others: a module's ``state_dict()`` or ``named_parameters()``,
    which have the same names everywhere. Anything else in them is left alone."""
    named = sorted(params.items()) if isinstance(params, dict) else list(params)
    _broadcast_tensors([tensor for _, tensor in named if isinstance(tensor, torch.Tensor)], root_rank, process_set)


def _broadcast_tensors(tensors: list[torch.Tensor], root_rank: int, process_set: ProcessSet) -> None:
    batches: list[list[torch.Tensor]] = []
    for tensor in tensors:
        last = batches[-1] if batches else []
        if (last and last[0].dtype == tensor.dtype and last[0].device == tensor.device
                and (sum(t.numel() for t in last) + tensor.numel()) * tensor.element_size() <= _TOGETHER_BYTES):
            last.append(tensor)
        else:
            batches.append([tensor])
    flats = [batch[0].detach() if len(batch) == 1 else torch.cat([t.detach().reshape(-1) for t in batch])
             for batch in batches]
    handles = [broadcast_async_(flat, root_rank, None, process_set) for flat in flats]
    for batch, flat, handle in zip(batches, flats, handles):
        handle.wait()
        if len(batch) > 1:
            for tensor, part in zip(batch, flat.split([t.numel() for t in batch])):
                tensor.detach().copy_(part.view(tensor.shape))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None,
                              process_set: ProcessSet = world) -> None:
    """Rank ``root_rank``'s optimizer state and settings (learning rates and the like) into those of the others, whose
    optimizers may have none yet. ``model`` is not used."""
    state = broadcast_object(optimizer.state_dict(), root_rank, process_set=process_set)
    if context.rank != root_rank:
        optimizer.load_state_dict(state)


def _encoded(obj: Any) -> tuple[bytes, Exception | None]:
    """The object's bytes; of one that cannot be sent an error, and what tells the others of it: they wait already."""
    try:
        return _objects.encode(obj, pickles=context.takes_pickles()), None
    except Exception as error:  # noqa: BLE001: of a pickle it may be any; the caller raises it.
        return _objects.encode_refusal(str(error)), error


def _decoded(content: torch.Tensor, rank: int) -> Any:
    return _objects.decode(content.numpy().tobytes(), context.takes_pickles(), f"rank {rank}")


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = world) -> Any:
    """Rank ``root_rank``'s object on all members; what others give is not looked at. It is made of tensors, NumPy arrays and
    plain values. TypeError at the root, and `recon.Refused` at the others, for anything else; init(pickle=True) lets that
    through, too."""
    process_set.place_of(root_rank)
    mine = context.rank == root_rank
    data, error = _encoded(obj) if mine else (b"", None)
    size = int(broadcast_(torch.tensor([len(data)]), root_rank, name, process_set))
    if not mine:
        _announced.check([size], 1, _announced.ranks([root_rank]))
    content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if mine else torch.empty(size, dtype=torch.uint8)
    content = broadcast_(content, root_rank, name, process_set)
    if error is not None:
        raise error
    return obj if mine else _decoded(content, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = world) -> list[Any]:
    """All members' objects, by rank; of what they are made is as for `broadcast_object`."""
    data, error = _encoded(obj)
    sizes = allgather(torch.tensor([len(data)]), name, process_set).tolist()
    _announced.check(sizes, 1, _announced.ranks(process_set.ranks or range(len(sizes))))
    whole = allgather(torch.frombuffer(bytearray(data), dtype=torch.uint8), name, process_set)
    if error is not None:
        raise error
    if len(whole) != sum(sizes):
        raise ValueError(f"objects of {sizes} bytes were announced, by rank, and {len(whole)} bytes have come")
    return [_decoded(part, rank) for part, rank in zip(whole.split(sizes), process_set.ranks or [])]
