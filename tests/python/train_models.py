"""The examples' ResNet-18 and GPT as a worker trains them, for tests: one job after another, each at its own server."""

import argparse
import contextlib
import json
import os
import pathlib
import sys
from typing import NamedTuple

import recon.torch as rt
import torch
from torch.nn import functional

import train_small

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"))
import models  # noqa: E402

# Of a split, so that three workers have some until the end.
SPLIT_BATCHES = 10


class Size(NamedTuple):
    """How large the models and their samples are."""

    width: int  # Channels of ResNet-18's first stage.
    pixels: int
    context: int
    embedding: int
    layers: int
    batch: int


SIZES = {"small": Size(4, 8, 8, 32, 2, 4), "full": Size(64, 8, 64, 96, 2, 8)}


def make_model(name: str, size: Size) -> torch.nn.Module:
    torch.manual_seed(3)
    if name == "resnet":
        return models.ResNet(size.width, classes=10)
    return models.GPT(size.context, size.embedding, size.layers, heads=2, symbols=64)


def make_data(name: str, size: Size, samples: int) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    if name == "resnet":
        labels = torch.randint(0, 10, (samples,), generator=generator)
        centers = torch.randn(10, 1, size.pixels, size.pixels, generator=generator)
        noise = torch.randn(samples, 1, size.pixels, size.pixels, generator=generator)
        return torch.utils.data.TensorDataset(centers[labels] + noise, labels)
    # Each symbol is the one before it, and a small number.
    text = torch.randint(0, 4, (samples, size.context + 1), generator=generator).cumsum(1) % 64
    return torch.utils.data.TensorDataset(text[:, :-1].clone(), text[:, 1:].clone())


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = model(x)
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def values_of(model: torch.nn.Module) -> torch.Tensor:
    """All its parameters and buffers, one after the other."""
    return torch.cat([tensor.reshape(-1).float() for tensor in model.state_dict().values()])


def train(run: dict, size: Size, job_settings: dict, settings: dict) -> None:
    """Trains one pass. Leaves what the model had before each step, and at the end, in files of `run["to"]`, and in one of
    this worker's own the samples that it gave to each step."""
    to, name = pathlib.Path(run["to"]), os.environ["RECON_NAME"]
    model = make_model(run["model"], size)
    optimizer = train_small.make_optimizer(run["optimizer"], model)
    scheduler = train_small.make_scheduler(optimizer)
    loader = rt.DataLoader(make_data(run["model"], size, run["samples"]), batch_size=size.batch)
    job = rt.join(model, optimizer, loader, optimizer_on="server", scheduler=scheduler, server=run["server"],
                  job_settings={"split_samples": SPLIT_BATCHES * size.batch, **job_settings}, **settings)
    steps = []
    for x, y in loader:
        before = values_of(model)
        given = {"samples": job.indices(), "order": job._unstepped[0].order_key, "scheduled": scheduler.last_epoch}
        loss = loss_of(model, x, y)
        loss.backward()
        job.report(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        steps.append((job.step, given))
        save_first(before, to / f"before{job.step}")
    save_first(values_of(model), to / "last")
    (to / f"{name}.part").write_text(json.dumps(steps))
    (to / f"{name}.part").rename(to / f"{name}.steps")


def save_first(values: torch.Tensor, path: pathlib.Path) -> None:
    """Unless another worker of the step has."""
    with contextlib.suppress(FileExistsError), open(path, "xb") as file:
        values.numpy().tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=json.loads, required=True, help="of each: model, optimizer, samples, server, and a folder, to")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--job", type=json.loads, default={})
    parser.add_argument("--worker", type=json.loads, default={})
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in options.runs:
        train(run, SIZES[options.size], options.job, options.worker)


if __name__ == "__main__":
    main()
