"""One rank of elastic_test.py: elastic_ranks.py CASE END. The case "train" trains until the file END is there. Each process has
batches of its own, by its number (NUMBER), and says whose were in a step, so that the test can do the same steps again."""

import os
import pathlib
import sys

import numpy as np
import torch
from torch import nn

import recon
from recon.torch.elastic import Elastic

torch.set_num_threads(1)
NUMBERS = 256  # Of processes of one test.


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).double()
        # Its gradient says whose losses are in the mean.
        self.whose = nn.Parameter(torch.zeros(NUMBERS, dtype=torch.float64))

    def forward(self, x):
        return self.layers(x)


def build(number):
    torch.manual_seed(number)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)


def loss_of(model, step, number):
    generator = torch.Generator().manual_seed(step * NUMBERS + number)
    x = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    return nn.functional.mse_loss(model(x), x[:, :4].sin()) + model.whose[number]


def again(first, steps):
    """Parameters when one process, which begins as number ``first``, does these steps: numbers of those in each."""
    model, optimizer, schedule = build(first)
    for step, numbers in enumerate(steps):
        optimizer.zero_grad()
        for number in numbers:
            (loss_of(model, step, number) / len(numbers)).backward()
        optimizer.step()
        schedule.step()
    return dict(model.named_parameters())


def check_all_have_the_same(group, model):
    """Before a step: parameters and buffers."""
    mine = [float(value.detach().double().sum()) for value in (*model.parameters(), *model.buffers())]
    try:
        rows = group.all_gather(np.array([mine]))
    except recon.ReconError:
        return  # Somebody has died.
    if (rows != rows[0]).any():
        raise SystemExit(f"processes differ: {rows}")


def train(end):
    number = int(os.environ["NUMBER"])
    model, optimizer, schedule = build(number)
    elastic = Elastic(model, optimizer, also={"schedule": schedule}, min_size=int(os.environ["MIN_SIZE"]),
                      begin_size=3)
    ended = False
    while not ended:
        elastic.start_step()
        check_all_have_the_same(elastic.group, model)
        try:
            ended = bool(elastic.group.all_reduce(np.array([end.exists()], np.uint8), "max")[0])
        except recon.ReconError as error:
            print(f"step {elastic.steps}: {error}", flush=True)
        optimizer.zero_grad()
        loss_of(model, elastic.steps, number).backward()
        whose = model.whose.grad.nonzero().reshape(-1).tolist()
        if not elastic.step():
            print("not done", flush=True)
            ended = False
            continue
        schedule.step()
        print(f"step {elastic.steps} of {elastic.size} ranks, this is {elastic.rank}, of {whose}", flush=True)
    elastic.close()
    torch.save({"steps": elastic.steps, "state": dict(model.named_parameters())}, f"{end}.{os.environ['RECON_NAME']}")


def raises(error, text, call):
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
        return
    raise AssertionError(f"no {error.__name__}")


def uses(end):
    """Two ranks: gradients that are added up, parameters that only one of them uses, and wrong calls."""
    torch.manual_seed(int(os.environ["NUMBER"]))
    module = nn.ModuleDict({"both": nn.Linear(4, 4), "one": nn.Linear(4, 4), "none": nn.Linear(4, 4), "late": nn.Linear(4, 4)})
    module["late"].requires_grad_(False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, weight_decay=0.5)
    raises(ValueError, "expected something with state_dict", lambda: Elastic(module, optimizer, also={"lr": 0.1}))
    raises(ValueError, "another name than", lambda: Elastic(module, optimizer, also={"optimizer": optimizer}))
    raises(ValueError, "wire is", lambda: Elastic(module, optimizer, wire="topk:0.1"))
    raises(ValueError, "no parameter", lambda: Elastic(nn.ReLU(), optimizer))
    elastic = Elastic(module, optimizer, min_size=2, bucket_megabytes=0.0)
    raises(RuntimeError, "no step has begun", lambda: elastic.rank)
    raises(RuntimeError, "no step has begun", elastic.step)
    raises(RuntimeError, "outside of a step", lambda: module["both"](torch.ones(4)).sum().backward())
    elastic.steps = 5  # As of a checkpoint; all have the same in the end.
    elastic.start_step()
    check_all_have_the_same(elastic.group, module)
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
    expected = {"both.weight": 3.0, "both.bias": 2.0, "one.weight": 1.5, "one.bias": 1.0}
    for name, parameter in module.named_parameters():
        # What nobody uses is not decayed, either.
        assert (parameter.grad is None) == (name not in expected), name
        if name in expected:
            assert torch.equal(parameter.grad, torch.full_like(parameter, expected[name])), (name, parameter.grad)
    assert elastic.step(optimizer.step) and elastic.steps == 6
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, 0.5 * before[name] - expected[name] if name in expected else before[name])
    elastic.start_step()
    raises(RuntimeError, "no gradient has been exchanged", elastic.step)
    elastic.start_step()
    backward(1.0)
    raises(RuntimeError, "a second backward", lambda: backward(1.0))
    elastic.step()
    elastic.start_step()
    module["late"].requires_grad_(True)
    (module["both"](torch.ones(4)) + module["late"](torch.ones(4))).sum().backward()
    raises(RuntimeError, "needed none when Elastic was made", elastic.step)
    elastic.close()
    module["both"](torch.ones(4)).sum().backward()  # Its hooks are gone.


if __name__ == "__main__":
    {"train": train, "uses": uses}[sys.argv[1]](pathlib.Path(sys.argv[2]))
