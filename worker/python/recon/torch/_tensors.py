"""A model's tensors as a job has them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from torch.nn.parameter import is_lazy

DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}
# All integers up to it are float32 numbers.
EXACT_MAX = 1 << 24
# A float32 mean of integers is off by less of them: sums of the workers' movements are rounded a few times.
INTEGER_ERROR = 2.0 ** -22
BUFFERS = "buffers"
# In the names of what torch.compile has wrapped: checkpoints of the plain module do not have it.
COMPILED = "_orig_mod."


def plain_module(model: torch.nn.Module) -> torch.nn.Module:
    """The module in what torch.compile or DataParallel have made of it."""
    while True:
        if type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        elif isinstance(model, torch.nn.DataParallel):
            model = model.module
        else:
            return model


class Tensors:
    """The model's tensors as the job has them: one flat array in float32."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        group_of = {id(parameter): number for number, group in enumerate(optimizer.param_groups)
                    for parameter in group["params"]}
        self.group_names = ["default"] if len(optimizer.param_groups) == 1 else [
            f"group{number}" for number in range(len(optimizer.param_groups))]
        self.specs: list[tuple[str, list[int], str, bool, str]] = []
        self.aliases: list[tuple[str, str]] = []
        self.trained: list[torch.nn.Parameter] = []
        self.buffers: list[torch.Tensor] = []
        first_name: dict[int, str] = {}
        model = plain_module(model)
        _check_all_have_an_optimizer(model, group_of.keys())
        for its_name, parameter in model.named_parameters(remove_duplicate=False):
            name = its_name.replace(COMPILED, "")
            if id(parameter) in first_name:
                self.aliases.append((name, first_name[id(parameter)]))
            elif parameter.requires_grad and (is_lazy(parameter) or parameter.numel() > 0):
                first_name[id(parameter)] = name
                self._add(name, parameter, group_of)
        persistent = model.state_dict().keys()
        for its_name, buffer in model.named_buffers(remove_duplicate=False):
            name = its_name.replace(COMPILED, "")
            if its_name not in persistent or buffer.numel() == 0 or buffer.dtype not in DTYPES:
                continue
            if id(buffer) in first_name:
                self.aliases.append((name, first_name[id(buffer)]))
                continue
            if not _fits(buffer):
                continue  # Each worker's own.
            first_name[id(buffer)] = name
            self.specs.append((name, list(buffer.shape), BUFFERS, True, DTYPES[buffer.dtype]))
            self.buffers.append(buffer)
        missing = set(group_of) - {id(parameter) for parameter in self.trained} - {
            id(parameter) for parameter in model.parameters()}
        if missing:
            raise TypeError(f"the optimizer has {len(missing)} parameters that {type(model).__name__} has not")
        if not self.trained:
            raise TypeError(f"no parameter of {type(model).__name__} requires a gradient: there is nothing to train")
        self._revision = -1
        self._ids = {id(parameter) for parameter in self.trained}

    def _add(self, name: str, parameter: torch.nn.Parameter, group_of: dict[int, int]) -> None:
        if is_lazy(parameter) or parameter.is_meta:
            raise TypeError(f"parameter {name} has no values yet: give the model some (a first batch, to_empty() or a "
                            "checkpoint) before join()")
        if parameter.dtype not in DTYPES or not parameter.is_floating_point():
            raise TypeError(f"parameter {name} is {parameter.dtype}, expected a real floating type of at most 64 bits")
        self.specs.append((name, list(parameter.shape), self.group_names[group_of[id(parameter)]], False,
                           DTYPES[parameter.dtype]))
        self.trained.append(parameter)

    def place(self, core: Any) -> None:
        """Learns where the tensors lie in the flat array."""
        at = {name: (offset, size) for name, offset, size in core.placement()}
        self._size = core.size
        self._groups = core.groups
        names = [spec[0] for spec in self.specs]
        tensors = [*self.trained, *self.buffers]
        self._places = [(tensor, *at[name]) for name, tensor in zip(names, tensors)]
        self._base: np.ndarray | None = None

    def places_of_parameters(self) -> list[tuple[int, int]]:
        """Offset and size of each trained parameter, by its number."""
        return [(offset, size) for _, offset, size in self._places[:len(self.trained)]]

    @property
    def names(self) -> list[str]:
        """Of the trained parameters, by their numbers."""
        return [spec[0] for spec in self.specs[:len(self.trained)]]

    def loaded(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The trained parameters, each with the value that the job has given it; none before it has."""
        return [] if self._base is None else self.values_in(self._base)[:len(self.trained)]

    def values(self) -> np.ndarray:
        """What the model has, flat."""
        flat = np.empty(self._size, np.float32)
        self.store_values(flat)
        for (_, offset, size), spec in zip(self._places, self.specs):
            wrong = size - int(np.isfinite(flat[offset:offset + size]).sum())
            if wrong > 0:
                raise FloatingPointError(f"the model begins with {spec[0]}, of whose {size} values {wrong} are infinite "
                                         "or not a number")
        return flat

    def have_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.trained)

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """TypeError if the script trains a parameter that the job has not: nobody would update it."""
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in self._ids and parameter.grad is not None and parameter.numel() > 0:
                    raise TypeError(f"a parameter of shape {list(parameter.shape)} in the optimizer's group {number} "
                                    "has a gradient, but join() did not see it as one to train: add groups and "
                                    "unfreeze parameters before join()")

    @torch.no_grad()
    def store_values(self, flat: np.ndarray) -> None:
        target = torch.from_numpy(flat)
        for tensor, offset, size in self._places:
            target[offset:offset + size].copy_(tensor.reshape(-1))

    def values_in(self, flat: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The model's tensors, each with its values there: views."""
        source = _tensor_of(flat)
        return [(tensor, source[offset:offset + size].view(tensor.shape)) for tensor, offset, size in self._places]

    @torch.no_grad()
    def load(self, core: Any) -> bool:
        """Gives the model the job's parameters, where they have changed; whether they have."""
        if core.revision == self._revision:
            return False
        self._revision = core.revision
        flat = core.parameters()
        for tensor, values in self.values_in(flat):
            tensor.copy_(as_kept(tensor, values))
        # Buffers move from here on.
        self._base = flat
        return True

    @torch.no_grad()
    def store(self, gradient: np.ndarray, there: set[int]) -> None:
        """Writes the gradients, but for those of parameters that are `there` by their numbers, and how far buffers have
        moved."""
        target = torch.from_numpy(gradient)
        base = _tensor_of(self._base)
        for number, (tensor, offset, size) in enumerate(self._places):
            if number in there:
                continue
            place = target[offset:offset + size]
            if not isinstance(tensor, torch.nn.Parameter):
                place.copy_(tensor.reshape(-1))
                torch.sub(base[offset:offset + size], place, out=place)
            elif tensor.grad is None:
                place.zero_()
            elif tensor.grad.is_sparse:
                _scatter(tensor.grad.coalesce(), place.view(tensor.shape))
            else:
                place.copy_(tensor.grad.reshape(-1))

    def rates(self, optimizer: torch.optim.Optimizer) -> list[float]:
        """The learning rate of each group of the job."""
        rates = {name: float(group["lr"]) for name, group in zip(self.group_names, optimizer.param_groups)}
        return [rates.get(name, 0.0) for name in self._groups]

    def detach(self) -> None:
        """The model's tensors are its own from here on."""
        self._base = None


def _check_all_have_an_optimizer(model: torch.nn.Module, optimized: Collection[int]) -> None:
    """TypeError for parameters that nobody would train."""
    trained = {name: id(one) for name, one in model.named_parameters() if one.requires_grad and (is_lazy(one) or one.numel())}
    without = [name.replace(COMPILED, "") for name, one in trained.items() if one not in optimized]
    if not without:
        return
    raise TypeError(f"{listed(without)} of {type(model).__name__} require a gradient, and the optimizer has only "
                    f"{len(trained) - len(without)} of {len(trained)} parameters: a job has one optimizer, over all that it trains. "
                    "Give it the others, as a group of their own say; freeze what is not trained by requires_grad_(False); or "
                    "give join() the part of the model that this optimizer trains, and make a job for each part")


def listed(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _scatter(sparse: torch.Tensor, place: torch.Tensor) -> None:
    """Writes a coalesced sparse tensor to `place`, with zeros elsewhere."""
    place.zero_()
    place.index_put_(tuple(sparse.indices().to(place.device)), sparse.values().to(place.device, place.dtype))


def _tensor_of(values: np.ndarray) -> torch.Tensor:
    """A tensor of the same memory, which nobody writes to, though torch knows no such thing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)


@torch.no_grad()
def as_kept(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The job's float32 `values` of a tensor as the model keeps them. Integers that float32 cannot tell from the model's
    own are those: a counter beyond 2^24 keeps its last digits, and all are whole."""
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return values
    own = tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu()  # Others have no float64.
    said, exact = values.to(own.device, torch.float64), own.to(torch.float64)
    same = (said - exact).abs() <= (exact.abs() * INTEGER_ERROR).clamp(min=0.5)
    return torch.where(same, own, said.round().to(own.dtype))


def _fits(buffer: torch.Tensor) -> bool:
    """Whether the job can hold it: finite, and integers that are float32 numbers. A mask of -inf is not."""
    if buffer.is_floating_point():
        return bool(buffer.isfinite().all())
    return buffer.dtype == torch.bool or -EXACT_MAX <= int(buffer.min()) and int(buffer.max()) <= EXACT_MAX


def number_of(loss: Any) -> float | None:
    """A loss as a script reports it: a number, a tensor of one value, or None."""
    if isinstance(loss, torch.Tensor):
        loss = loss.detach()
    return None if loss is None else float(loss)
