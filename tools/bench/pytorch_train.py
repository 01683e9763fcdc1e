#!/usr/bin/env python3
"""One worker of pytorch.py: trains ResNet-18's shapes on small images, alone, under DistributedDataParallel, with
torchft or in a job of recon, and logs its losses.

The images are Fashion-MNIST, by default at 7 x 7, so that several workers fit on few cores while gradients are real ones
of all 11.2 million parameters. With --compute the time of a larger image's step is simulated: forward takes a third of it
and backward two, each block its share, and the process sleeps for what its own computing leaves of that."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import sys
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"))
from data import fashion_mnist  # noqa: E402
from models import Block, ResNet  # noqa: E402



def images(samples, side):
    train, _ = fashion_mnist()
    data = train.tensors[0][:samples]
    data = F.avg_pool2d(data, 28 // side) if side <= 28 else F.interpolate(data, size=side)
    return TensorDataset(data, train.tensors[1][:samples])


class Pace:
    """Sleeps in forward and backward until each block has taken its share of `seconds`."""

    def __init__(self, model, seconds):
        units = [model.stem, *(block for stage in model.stages for block in stage), model.head]
        assert all(isinstance(unit, Block) for unit in units[1:-1])
        forward, backward = seconds / 3, seconds * 2 / 3
        for number, unit in enumerate(units):
            share = (number + 1) / len(units)
            unit.register_forward_hook(self.until(forward * share))
            share = (len(units) - number) / len(units)
            unit.register_full_backward_hook(self.until(forward + backward * share))
        self.began = 0.0

    def until(self, after):
        def wait(*_):
            left = self.began + after - time.monotonic()
            if left > 0:
                time.sleep(left)
        return wait


def distributed(model, options):
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.patience))
    # PowerSGD's steps of several buckets meet out of order over gloo, which ends the process: it gets one bucket.
    one_bucket = {"bucket_cap_mb": 1000} if options.mode == "ddp-powersgd" else {}
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **one_bucket)
    if options.mode == "ddp-fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.mode == "ddp-powersgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=options.rank,
                                            start_powerSGD_iter=10)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


@contextlib.contextmanager
def replica_group(model, optimizer, options):
    """Inside, the optimizer's steps are those of torchft's LocalSGD or DiLoCo. This process is a replica group by itself."""
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo, LocalSGD
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = datetime.timedelta(seconds=options.patience)
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False)
    # All begin with the same parameters, and an exchange that fails ends the process: nobody fetches another's state.
    manager = Manager(ProcessGroupGloo(patience), None, None, int(os.environ["WORLD_SIZE"]), use_async_quorum=False,
                      timeout=patience, quorum_timeout=patience, rank=0, world_size=1, store_addr=host, store_port=store.port,
                      hostname=host, replica_id=f"worker{os.environ['RANK']}", init_sync=False, max_retries=0)
    if options.mode == "torchft-diloco":
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        steps = DiLoCo(manager, [model], optimizer, outer, **options.settings)
    else:
        steps = LocalSGD(manager, model, optimizer, **options.settings)
    try:
        with steps:
            yield
    finally:
        manager.shutdown()


def load_checkpoint(options, model, optimizer):
    if not options.checkpoint or not options.checkpoint.exists():
        return 0
    saved = torch.load(options.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save_checkpoint(options, model, optimizer, step):
    part = options.checkpoint.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    os.replace(part, options.checkpoint)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", required=True, choices=["plain", "ddp", "ddp-fp16", "ddp-powersgd", "torchft-local",
                                                          "torchft-diloco", "recon"])
    parser.add_argument("--losses", type=pathlib.Path, required=True, help="a line of JSON for each step")
    parser.add_argument("--compute", type=float, default=0, help="simulated seconds of a step; 0: as long as it takes")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=16000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0)
    parser.add_argument("--side", type=int, default=7, choices=[7, 14, 28, 56], help="pixels of an image's side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: the epochs count")
    parser.add_argument("--rank", type=int, default=2, help="of PowerSGD's matrices")
    parser.add_argument("--patience", type=int, default=60, help="seconds until gloo gives a collective up")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="written every 10 s by rank 0, read at the start")
    parser.add_argument("--settings", type=json.loads, default={},
                        help="JSON: more arguments of recon.torch.join, LocalSGD or DiLoCo")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    data = images(options.samples, options.side)
    model = ResNet(options.width, classes=10)
    if options.compute:
        pace = Pace(model, options.compute)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    first = load_checkpoint(options, model, optimizer)
    run = model
    sampler = None
    if options.mode == "recon":
        import recon.torch as rt
        loader = rt.DataLoader(data, batch_size=options.batch)
        rt.join(model, optimizer, loader, epochs=options.epochs, **options.settings)
    else:
        if options.mode.startswith("ddp"):
            run = distributed(model, options)
        if options.mode != "plain":
            sampler = DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
        loader = DataLoader(data, batch_size=options.batch, sampler=sampler, shuffle=sampler is None, drop_last=True)
    rank = int(os.environ.get("RANK", 0))
    saved = time.monotonic()
    step = first
    steps = replica_group(model, optimizer, options) if options.mode.startswith("torchft") else contextlib.nullcontext()
    with steps, open(options.losses, "a", buffering=1) as log:
        for epoch in range(first // len(loader) if sampler else 0, options.epochs):
            if sampler:
                sampler.set_epoch(epoch)
            for x, y in loader:
                if options.compute:
                    pace.began = time.monotonic()
                loss = F.cross_entropy(run(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                log.write(json.dumps([time.time(), loss.item(), len(x), step, os.getpid()]) + "\n")
                if step == options.steps:
                    return
                if options.checkpoint and rank == 0 and time.monotonic() - saved >= 10:
                    save_checkpoint(options, model, optimizer, step)
                    saved = time.monotonic()


if __name__ == "__main__":
    main()
