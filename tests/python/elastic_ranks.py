"""One rank of elastic_test.py: elastic_ranks.py CASE END. The case "train" trains until the file END is there, with the batches that a
process that never stops has: every rank has the same, so that the mean over any of them is that of one."""

import os
import pathlib
import sys

import numpy as np
import torch
from torch import nn

import recon
from recon.torch.elastic import Elastic

torch.set_num_threads(1)


def build(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    return module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    return nn.functional.mse_loss(model(x), x[:, :4].sin())


def alone(seed, steps):
    """Parameters and buffers after so many steps in one process."""
    module, optimizer, schedule = build(seed)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
        schedule.step()
    return module.state_dict()


def train(end):
    module, optimizer, schedule = build(int(os.environ["SEED"]))
    elastic = Elastic(module, optimizer, also={"schedule": schedule}, min_size=int(os.environ["MIN_SIZE"]),
                      begin_size=3)
    ended = False
    while not ended:
        elastic.start_step()
        try:
            ended = bool(elastic.group.all_reduce(np.array([end.exists()], np.uint8), "max")[0])
        except recon.ReconError as error:
            print(f"step {elastic.steps}: {error}", flush=True)
        optimizer.zero_grad()
        loss_of(module, elastic.steps).backward()
        if not elastic.step():
            print("not done", flush=True)
            ended = False
            continue
        schedule.step()
        print(f"step {elastic.steps} of {elastic.size} ranks, this is {elastic.rank}", flush=True)
    elastic.close()
    torch.save({"steps": elastic.steps, "state": module.state_dict()}, f"{end}.{os.environ['RECON_NAME']}")


def raises(error, text, call):
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
        return
    raise AssertionError(f"no {error.__name__}")


def uses(end):
    """Two ranks: gradients that are added up, parameters that only one of them uses, and wrong calls."""
    torch.manual_seed(3)
    module = nn.ModuleDict({"both": nn.Linear(4, 4), "one": nn.Linear(4, 4), "none": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    raises(ValueError, "has no state_dict", lambda: Elastic(module, optimizer, also={"lr": 0.1}))
    raises(ValueError, "no parameter", lambda: Elastic(nn.ReLU(), optimizer))
    elastic = Elastic(module, optimizer, min_size=2, bucket_megabytes=0.0)
    raises(RuntimeError, "no step has begun", lambda: elastic.rank)
    raises(RuntimeError, "no step has begun", elastic.step)
    raises(RuntimeError, "outside of a step", lambda: module["both"](torch.ones(4)).sum().backward())
    elastic.start_step()
    raises(RuntimeError, "has begun already", elastic.start_step)
    optimizer.zero_grad()

    def backward(scale):
        out = module["both"](torch.full((4,), scale)).sum()
        if elastic.rank == 1:
            out = out + module["one"](torch.full((4,), scale)).sum()
        out.backward()

    with elastic.no_sync():
        backward(1.0)
    backward(2.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = {"both.weight": 3.0, "both.bias": 2.0, "one.weight": 1.5, "one.bias": 1.0, "none.weight": 0.0, "none.bias": 0.0}
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, expected[name])), (name, parameter.grad)
    assert elastic.step(optimizer.step) and elastic.steps == 1
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name] - expected[name])
    elastic.start_step()
    raises(RuntimeError, "no gradient has been exchanged", elastic.step)
    elastic.start_step()
    backward(1.0)
    raises(RuntimeError, "a second backward", lambda: backward(1.0))
    elastic.close()
    module["both"](torch.ones(4)).sum().backward()  # Its hooks are gone.


if __name__ == "__main__":
    {"train": train, "uses": uses}[sys.argv[1]](pathlib.Path(sys.argv[2]))
