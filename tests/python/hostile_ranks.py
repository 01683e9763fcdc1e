"""A rank that sends pickles with a payload in place of values, or announces sizes that it does not have, and ranks that would take
them. hostile_test.py runs them.

Usage: hostile_ranks.py CASE good|raw|marked|NUMBER MARKER: what this rank sends is a value, a pickle as it is, or one that says so; or
it announces so many bytes or rows, and sends none."""

import contextlib
import os
import pathlib
import pickle
import signal
import sys

import numpy as np
import torch

import recon.hvd as hvd
from recon import _objects, collective
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
    if is_number(SENDS):
        training._hand_over = lambda among, root, _: (among.broadcast(np.array([int(SENDS)]), root), signal.pause())
    training.start_step()


CALLS = {
    "broadcast_object": lambda: hvd.broadcast_object({"a": 1}, 0),
    "allgather_object": lambda: hvd.allgather_object({"a": 1}),
    "allgather": lambda: hvd.allgather(torch.ones(3, 2)),
    "broadcast_optimizer_state": lambda: hvd.broadcast_optimizer_state(optimizer_of(torch.nn.Linear(2, 1)), 0),
    "ObjectState": lambda: hvd.elastic.ObjectState(batch=0).sync(),
    "TorchState": lambda: state_of(batch=0).sync(),
    "ElasticSampler": lambda: state_of(sampler=hvd.elastic.ElasticSampler(range(8))).sync(),
}


def is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def rows_of_hvd(number: int) -> None:
    """What a rank tells the others of its rows in `hvd.allgather` of such an array."""
    with hvd.global_process_set.call() as group:
        group.all_gather(torch.tensor([number]), sizes=[1] * group.size, of="rows of float32[*, 2]")


# What a rank says of its size before it sends anything.
ANNOUNCES = {
    "broadcast_object": lambda number: _functions.broadcast_(torch.tensor([number]), 0),
    "allgather_object": lambda number: _functions.allgather(torch.tensor([number])),
    "allgather": rows_of_hvd,
}


def plain_set() -> None:
    """Of `recon.collective` itself."""
    with collective.Group(os.environ["RECON_SET"], rank=int(os.environ["RECON_RANK"]), size=2) as group:
        if is_number(SENDS):
            group._exchange(np.array([int(SENDS)] * (2 if CASE == "all_to_all" else 1)), "")
            signal.pause()
        part = np.ones((3, 2), np.float32)
        {"all_gather": lambda: group.all_gather(part), "gather": lambda: group.gather(part, 1),
         "all_to_all": lambda: group.all_to_all([part, part])}[CASE]()


def main() -> None:
    if CASE == "elastic":
        return elastic()
    if CASE in ("all_gather", "gather", "all_to_all"):
        return plain_set()
    if is_number(SENDS):
        hvd.init()
        ANNOUNCES[CASE](int(SENDS))
        signal.pause()
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
