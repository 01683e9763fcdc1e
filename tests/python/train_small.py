"""A small training as a user would write it, for tests: a worker that is killed, one of several, a wrong one."""

import argparse
import json
import os
import signal

import recon.torch as rt
import torch
from torch.nn import functional


def make_data(samples: int) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    centers = torch.randn(10, 32, generator=generator)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    return torch.utils.data.TensorDataset(centers[labels] + torch.randn(samples, 32, generator=generator), labels)


def make_model(norm: str) -> torch.nn.Module:
    torch.manual_seed(3)
    middle = torch.nn.BatchNorm1d(64) if norm == "batch" else torch.nn.LayerNorm(64)
    return torch.nn.Sequential(torch.nn.Linear(32, 64, bias=norm != "batch"), middle, torch.nn.ReLU(), torch.nn.Linear(64, 10))


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05)
    if name == "nesterov":
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    if name == "rmsprop":  # One that the server has not.
        return torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0,
                                                                        "lr": 3e-3}], lr=1e-3)


def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20) * 0.99 ** step)


def kill_parent(_: int) -> None:
    """In a process that loads data: whose worker dies at that moment."""
    parent = os.getppid()
    print("a loading process:", os.getpid(), flush=True)
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        pass


def set_rates(scheduler: torch.optim.lr_scheduler.LambdaLR, number: int) -> None:
    """The learning rates after so many steps of the scheduler."""
    for group, base, rate in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas):
        group["lr"] = base * rate(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--norm", default="batch")
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--job", type=json.loads, default={})
    parser.add_argument("--worker", type=json.loads, default={})
    parser.add_argument("--steps-to", help="a file that gets a line a step: its number, and what this worker gave")
    parser.add_argument("--state-to", help="a file that gets the model's state at the end")
    parser.add_argument("--wrong", default="", help="something that a script may do wrong")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--member", nargs=3, metavar=("RANK", "SIZE", "FILE"), help="of a worker of several processes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    group = None
    if options.member:
        rank, size, path = options.member
        torch.distributed.init_process_group("gloo", f"file://{path}", rank=int(rank), world_size=int(size))
        group = torch.distributed.group.WORLD

    data = make_data(options.samples)
    tests = make_data(1000)
    model = make_model(options.norm)
    if options.wrong == "other shapes":
        model[3] = torch.nn.Linear(64, 11)
    optimizer = make_optimizer(options.optimizer, model)
    scheduler = make_scheduler(optimizer)

    def validate(model: torch.nn.Module) -> dict[str, tuple[float, int]]:
        x, y = tests.tensors
        out = model(x)
        return {"loss": (functional.cross_entropy(out, y, reduction="sum").item(), len(y)),
                "accuracy": (float((out.argmax(1) == y).sum()), len(y)), "confidence": (
                    float(out.softmax(1).amax(1).sum()), len(y))}

    loader = rt.DataLoader(data, batch_size=options.batch, num_workers=options.workers,
                           worker_init_fn=kill_parent if options.wrong == "dies" else None)
    job = rt.join(model, optimizer, loader, optimizer_on="server", evaluate=validate, epochs=options.epochs, scheduler=scheduler, group=group,
                  job_settings=options.job, **options.worker)
    if options.wrong == "joins twice":
        rt.join(model, optimizer, loader, optimizer_on="server")
    steps = open(options.steps_to, "w") if options.steps_to else None
    for _ in range(options.epochs):
        for x, y in loader:
            given = {"samples": job.indices(), "order": job._unstepped[0].order_key, "scheduled": scheduler.last_epoch}
            loss = functional.cross_entropy(model(x), y)
            if options.wrong == "dies later" and job.step > 20:
                os.kill(os.getpid(), signal.SIGKILL)
            if options.wrong == "no backward":
                optimizer.step()
            loss.backward()
            if options.wrong == "nan gradient":
                model[0].weight.grad[0, 0] = float("nan")
            job.report(loss)
            if options.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if options.wrong == "pulls alone" and job.step > 20 and group is not None and group.rank() == 0:
                job.state_dict()
            if steps is not None:
                print(json.dumps([job.step, given]), file=steps, flush=True)
    if options.state_to:
        torch.save(model.state_dict(), options.state_to)


if __name__ == "__main__":
    main()
