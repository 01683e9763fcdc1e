"""One rank of killed_ranks.py. Classifies points by a fixed random network's answers, with some noise; computing takes
--compute-ms more each step (simulated). Appends a line "TIME STEP RANKS" to the log for each step, "again" for each that
came to nothing, and ends with one "loss VALUE"."""

import argparse
import datetime
import os
import pathlib
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backend", choices=("recon", "gloo"), required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--compute-ms", type=float, required=True)
parser.add_argument("--path", type=pathlib.Path, required=True, help="for logs and gloo's checkpoint")
options = parser.parse_args()

BATCH, FEATURES, CLASSES, CHECKPOINT_STEPS = 64, 32, 10, 50
torch.set_num_threads(1)
log = open(options.path / f"{os.getpid()}.steps", "a")


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))


teacher = network(1)


def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    with torch.no_grad():
        noise = 0.05 * torch.randn(count, CLASSES, generator=generator)
        return x, (teacher(x) + noise).argmax(1)


def forward(model, step, rank):
    time.sleep(options.compute_ms / 1000)
    x, y = samples(1000 + step * 64 + rank, BATCH)
    return nn.functional.cross_entropy(model(x), y)


def note(step, ranks):
    log.write(f"{time.time():.3f} {step} {ranks}\n")
    log.flush()


def train_recon(module, optimizer):
    from recon.torch.elastic import Elastic
    elastic = Elastic(module, optimizer, begin_size=options.ranks)
    while elastic.steps < options.steps:
        elastic.start_step()
        if elastic.steps >= options.steps:  # Those whose state this is have just ended.
            break
        optimizer.zero_grad()
        forward(module, elastic.steps, elastic.rank).backward()
        if elastic.step():
            note(elastic.steps, elastic.size)
        else:
            log.write("again\n")
    elastic.close()


def train_gloo(module, optimizer):
    import torch.distributed as dist
    # What the processes before have left in torchrun's store says where they were.
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False))
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=options.ranks,
                            timeout=datetime.timedelta(seconds=30))
    checkpoint, step = options.path / "checkpoint", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = nn.parallel.DistributedDataParallel(module)
    while step < options.steps:
        optimizer.zero_grad()
        forward(model, step, dist.get_rank()).backward()
        optimizer.step()
        step += 1
        note(step, options.ranks)
        if step % CHECKPOINT_STEPS == 0 and dist.get_rank() == 0:
            torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                       f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)


module = network(2)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
(train_recon if options.backend == "recon" else train_gloo)(module, optimizer)
x, y = samples(7, 10_000)
with torch.no_grad():
    log.write(f"loss {nn.functional.cross_entropy(module(x), y).item():.5f}\n")
log.close()
