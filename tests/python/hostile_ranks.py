"""A rank that sends pickles with a payload in place of values, and ranks that would take them. hostile_test.py runs them.

Usage: hostile_ranks.py CASE good|raw|marked MARKER: what this rank sends is a value, a pickle as it is, or one that says so."""

import contextlib
import pathlib
import pickle
import sys

import torch

import recon.hvd as hvd
from recon import _objects
from recon.hvd import _functions
from hostile import Payload

CASE, SENDS, MARKER = sys.argv[1:]
MANY = 1000000  # Steps: more than any other rank has done.


def hostile(*_: object, **__: object) -> tuple[bytes, None]:
    data = pickle.dumps(Payload(pathlib.Path(MARKER)))
    return (data if SENDS == "raw" else _objects._PICKLE + data), None


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def state_of(**values: object) -> hvd.elastic.TorchState:
    model = torch.nn.Linear(2, 1)
    return hvd.elastic.TorchState(model, optimizer_of(model), **values)


def elastic() -> None:
    from recon.torch.elastic import Elastic

    model = torch.nn.Linear(2, 1)
    training = Elastic(model, optimizer_of(model), name="hostile", min_size=2, begin_size=2)
    if SENDS != "good":
        training._encoded, training.steps, training._line = hostile, MANY, 7
    training.start_step()


CALLS = {
    "broadcast_object": lambda: hvd.broadcast_object({"a": 1}, 0),
    "allgather_object": lambda: hvd.allgather_object({"a": 1}),
    "broadcast_optimizer_state": lambda: hvd.broadcast_optimizer_state(optimizer_of(torch.nn.Linear(2, 1)), 0),
    "ObjectState": lambda: hvd.elastic.ObjectState(batch=0).sync(),
    "TorchState": lambda: state_of(batch=0).sync(),
    "ElasticSampler": lambda: state_of(sampler=hvd.elastic.ElasticSampler(range(8))).sync(),
}


def main() -> None:
    if CASE == "elastic":
        return elastic()
    if SENDS == "good":
        hvd.init()
        CALLS[CASE]()
        return
    _functions._encoded = hostile
    _functions._decoded = lambda *_: {}  # What it makes of others' values says nothing.
    hvd.init()
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        CALLS[CASE]()


if __name__ == "__main__":
    main()
