"""A job's parameters and optimizer state as plain PyTorch has them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import torch

from recon.launch.machine import find_program
from recon.torch._optimizers import is_of_the_server
from recon.torch._tensors import COMPILED, as_kept, plain_module
from recon.torch._worker_state import BLOB, states_in

if TYPE_CHECKING:
    from recon.torch._join import Job

# The server's names of what an optimizer of PyTorch computes, and its state as exports name it.
_PLANES = {"sgd": (), "momentum": ("momentum_buffer",), "nesterov": ("momentum_buffer",),
           "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}
_jobs: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Job]] = weakref.WeakKeyDictionary()


def remember(model: torch.nn.Module, job: Job) -> None:
    """`state_dict` finds the job by its model, compiled or not."""
    _jobs[model] = _jobs[plain_module(model)] = weakref.ref(job)


def state_dict(model: torch.nn.Module) -> dict[str, Any]:
    """The job's parameters and buffers as they are now, as ``model.state_dict()`` would have them: for
    ``torch.save()``, in the middle of training.

    They are pulled from the server, with all that this worker has pushed; the model stays as it is. What the job does
    not have, such as frozen parameters, is the model's. Tensors are copies, on the model's device; tied ones are one
    tensor. Once the job is done it is what the model has.

    `model` is what `join` was given. Raises RuntimeError between a batch and its ``step()``.
    """
    found = _jobs.get(model)
    job = found() if found is not None else None
    if job is None:
        raise RuntimeError(f"this {type(model).__name__} is not a job's: give the model that join() was given")
    return job.state_dict(model)


@torch.no_grad()
def copy_state(model: torch.nn.Module, pulled: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
    """The model's state, with the `pulled` values of some of its tensors."""
    values = {id(tensor): value for tensor, value in pulled}
    copies: dict[int, torch.Tensor] = {}
    state = model.state_dict(keep_vars=True)
    own = {id(tensor) for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    if values and any(isinstance(tensor, torch.Tensor) and id(tensor) not in own for tensor in state.values()):
        return _derived_state(model, pulled)
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue  # A module's extra state.
        if id(tensor) not in copies:
            value = as_kept(tensor, values[id(tensor)]) if id(tensor) in values else tensor
            copies[id(tensor)] = torch.empty_like(tensor, requires_grad=False).copy_(value)
        state[name] = copies[id(tensor)]
    return state


def _derived_state(model: torch.nn.Module, pulled: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
    """The same where hooks of the module make other tensors of its own, parts of them say: the model has the `pulled` values
    meanwhile."""
    before = [(tensor, tensor.data) for tensor, _ in pulled]
    try:
        for tensor, value in pulled:
            tensor.data = as_kept(tensor, value).to(tensor.device, tensor.dtype)
        state = model.state_dict()
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                state[name] = tensor.detach().clone()
        return state
    finally:
        for tensor, data in before:
            tensor.data = data


def load_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, source: str | os.PathLike[str], *,
                   updates: int | None = None, number: int = 0) -> None:
    """Gives a plain optimizer the state that the job's has in a snapshot, to go on without a server.

        reconctl snapshot export DATA/snapshots --output model.safetensors
        model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
        rt.load_optimizer(optimizer, model, "DATA/snapshots")

    Arguments:
        optimizer: made as the job's was, over the parameters of `model`. Where the server had it, learning rates and other
            settings stay as they are; where workers had it, they are the job's.
        model: its parameters are found by their names.
        source: the directory or address of snapshots, of which the newest counts; or one file of ``reconctl snapshot
            export --state``.
        updates: how many updates the job's optimizer has made: Adam's correction of its first steps goes by it.
            Snapshots know; with a file of Adam's say it. Where workers had the optimizer it is in its state.
        number: of several optimizers on workers, which one, in the order in which `join` was given them.

    Raises ValueError if the state is of another optimizer, or of another model. In a job with local steps the
    optimizer's state is each worker's own, and no snapshot has it.
    """
    shown = None if os.path.isfile(source) else json.loads(_reconctl("snapshot", "show", os.fspath(source), "--json"))
    exported = _read(os.fspath(source)) if shown is None else {}
    if BLOB in exported or (shown is not None and shown["optimizer"] == "mean"):
        states = states_in(exported if shown is None else _exported(source, int(shown["generation"])))
        if f"optimizer{number}" not in states:
            raise ValueError(f"the state in {source} has {sorted(states)}, and no optimizer{number}")
        optimizer.load_state_dict(states[f"optimizer{number}"])
        return
    if not is_of_the_server(optimizer):
        raise TypeError(f"{type(optimizer).__name__} with these settings steps on the worker, and its state is there: "
                        "snapshots have that of SGD, Adam and AdamW")
    kind = _kind(optimizer)
    planes = _PLANES[kind]
    if shown is None:
        tensors = exported
    else:
        if shown["optimizer"] != kind:
            raise ValueError(f"the state in {source} is of {shown['optimizer']}, the optimizer is {kind}")
        updates = int(shown["updates"]) if updates is None else updates
        tensors = _exported(source, int(shown["generation"]))
    if "exp_avg" in planes and updates is None:
        raise ValueError(f"{source} does not say how many updates Adam has made: give updates=, as in `reconctl snapshot "
                         "list`")
    state = optimizer.state_dict()
    state["state"] = _state_of(optimizer, model, planes, tensors, updates, source)
    optimizer.load_state_dict(state)


def _exported(source: str | os.PathLike[str], generation: int) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.bin")
        _reconctl("snapshot", "export", os.fspath(source), str(generation), "--state", "--format", "torch", "--output", path)
        return _read(path)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    if type(optimizer) is not torch.optim.SGD:
        return type(optimizer).__name__.lower()
    group = optimizer.param_groups[0]
    return "sgd" if group["momentum"] == 0 else "nesterov" if group["nesterov"] else "momentum"


def _state_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module, planes: tuple[str, ...],
              tensors: dict[str, torch.Tensor], updates: int | None, source: Any) -> dict[int, dict[str, Any]]:
    """By the number of a parameter, as an optimizer's state dict counts them."""
    names = {id(parameter): name.replace(COMPILED, "") for name, parameter in plain_module(model).named_parameters()}
    state: dict[int, dict[str, Any]] = {}
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        name = names.get(id(parameter))
        if name is None:
            raise ValueError(f"parameter {number} of the optimizer, of shape {list(parameter.shape)}, is not one of "
                             f"{type(model).__name__}")
        if not planes or not parameter.requires_grad or parameter.numel() == 0 or updates == 0:
            continue
        state[number] = {} if updates is None else {"step": torch.tensor(float(updates))}
        for plane in planes:
            value = tensors.get(f"{name}.{plane}")
            if value is None:
                raise ValueError(f"{source} has no {name}.{plane}: it is of another optimizer or model, or exported "
                                 "without --state")
            if value.shape != parameter.shape:
                raise ValueError(f"{name}.{plane} in {source} has shape {list(value.shape)}, the model's is "
                                 f"{list(parameter.shape)}")
            state[number][plane] = value
    return state


def _read(path: str) -> dict[str, torch.Tensor]:
    if os.path.exists(path) and not os.path.isfile(path):  # Opening a pipe would wait for its other end.
        raise ValueError(f"{path} is no regular file")
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped:
        return torch.load(path, weights_only=True, map_location="cpu")
    from safetensors.torch import load_file

    return load_file(path)


def _reconctl(*arguments: str) -> str:
    program = find_program("reconctl")
    if program is None:
        raise FileNotFoundError("reconctl is not installed with this package, nor in PATH")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"reconctl ended with {done.returncode}")
    return done.stdout
