"""One rank of collective_torch_test.py: torch.distributed's operations, and DDP beside gloo, over recon.

    collective_torch_ranks.py RANK RENDEZVOUS
"""

import os
import pathlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import recon.torch.distributed  # noqa: F401: makes the backend known.

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"))
import models  # noqa: E402

SIZE = 4
TIMEOUT = timedelta(seconds=120)


def equal(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got, expected), f"{what}: {got} instead of {expected}"


def check_operations(rank: int) -> None:
    mine = torch.arange(6, dtype=torch.float32).reshape(2, 3) + rank
    every = [torch.arange(6, dtype=torch.float32).reshape(2, 3) + r for r in range(SIZE)]
    total = mine.clone()
    dist.all_reduce(total)
    equal("all_reduce", total, sum(every))
    strided = torch.zeros(3, 2).t()
    strided.copy_(mine)
    dist.all_reduce(strided, dist.ReduceOp.MAX)
    equal("all_reduce of what is not contiguous", strided, every[-1])
    half = mine.to(torch.bfloat16)
    work = dist.all_reduce(half, async_op=True)
    work.wait()
    equal("all_reduce of bfloat16", half, sum(every).to(torch.bfloat16))
    sent = mine.clone()
    dist.broadcast(sent, 2)
    equal("broadcast", sent, every[2])
    reduced = mine.clone()
    dist.reduce(reduced, 1, dist.ReduceOp.AVG)
    equal("reduce", reduced, sum(every) / SIZE if rank == 1 else mine)
    gathered = [torch.empty(2, 3) for _ in range(SIZE)]
    dist.all_gather(gathered, mine)
    equal("all_gather", torch.stack(gathered), torch.stack(every))
    whole = torch.empty(SIZE * 2, 3)
    dist.all_gather_into_tensor(whole, mine)
    equal("all_gather_into_tensor", whole, torch.cat(every))
    part = torch.empty(2, 3)
    dist.reduce_scatter(part, [mine + to for to in range(SIZE)])
    equal("reduce_scatter", part, sum(every) + SIZE * rank)
    dist.reduce_scatter_tensor(part, torch.cat([mine + to for to in range(SIZE)]))
    equal("reduce_scatter_tensor", part, sum(every) + SIZE * rank)
    into = [torch.empty(2, 3) for _ in range(SIZE)] if rank == 3 else None
    dist.gather(mine, into, 3)
    if rank == 3:
        equal("gather", torch.stack(into), torch.stack(every))
    dist.scatter(part, every if rank == 0 else None, 0)
    equal("scatter", part, every[rank])
    received = [torch.empty(1 + rank, dtype=torch.int16) for _ in range(SIZE)]
    dist.all_to_all(received, [torch.full((1 + to,), 10 * rank + to, dtype=torch.int16) for to in range(SIZE)])
    equal("all_to_all", torch.cat(received),
          torch.cat([torch.full((1 + rank,), 10 * r + rank, dtype=torch.int16) for r in range(SIZE)]))
    output = torch.empty(sum(r + 1 for r in range(SIZE)), 2)
    dist.all_to_all_single(output, torch.full((SIZE * (rank + 1), 2), float(rank)), [r + 1 for r in range(SIZE)],
                           [rank + 1] * SIZE)
    equal("all_to_all_single", output[:, 0], torch.cat([torch.full((r + 1,), float(r)) for r in range(SIZE)]))
    if rank == 0:
        dist.send(mine, 1, tag=5)
    elif rank == 1:
        dist.recv(part, 0, tag=5)
        equal("send and recv", part, every[0])
    objects: list = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert [o["rank"] for o in objects] == list(range(SIZE)), objects
    message = ["from 1"] if rank == 1 else [None]
    dist.broadcast_object_list(message, 1)
    assert message == ["from 1"], message
    dist.barrier()


def train(group: dist.ProcessGroup, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """All parameters after some steps of the examples' ResNet-18, with few channels."""
    torch.manual_seed(3)
    model = models.ResNet(8, classes=10).to(dtype)
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(6):
        images = torch.randn(16, 1, 8, 8, generator=data).to(dtype)
        labels = torch.randint(10, (16,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def main() -> None:
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("recon", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=SIZE, timeout=TIMEOUT)
    check_operations(rank)
    pairs = {backend: dist.new_group([0, 1], backend=backend, timeout=TIMEOUT) for backend in ("recon", "gloo")}
    if rank < 2:
        equal("DDP of two ranks", train(pairs["recon"], rank), train(pairs["gloo"], rank))
    everybody = dist.new_group(backend="gloo", timeout=TIMEOUT)
    # The two add four values in other orders. In float32 BatchNorm makes 3e-3 of that, or 1e-7: it is the processor's.
    groups = (dist.group.WORLD, everybody)
    difference = torch.sub(*(train(group, rank, torch.float64) for group in groups)).abs().max().item()
    assert difference < 1e-9, f"DDP of four ranks differs by {difference}"
    dist.barrier()
    print(f"rank {rank} ok, four ranks differ by {difference:.2g}", flush=True)
    # A rank that goes does not leave the others hanging.
    if rank == 3:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        assert "member 'rank 3' (rank 3) is lost" in str(error), error
        print(f"rank {rank} was told", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank} ends", flush=True)


if __name__ == "__main__":
    main()
