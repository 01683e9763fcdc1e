"""One rank of collectives.py: prints the seconds of each round of each operation as one JSON object."""

import argparse
import json
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backend", choices=("recon", "gloo"), required=True)
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--address", required=True, help="host:port of recon-server, or of gloo's rank 0")
parser.add_argument("--megabytes", type=int, required=True)
parser.add_argument("--rounds", type=int, required=True)
options = parser.parse_args()

values = options.megabytes * 1_000_000 // 4 // options.ranks * options.ranks
part = values // options.ranks
SMALL_ROUNDS = 200
SETS = 16  # At once, each with its share of the values.


def recon_operations():
    from recon.collective import Group
    group = Group("bench", server=options.address, rank=options.rank, size=options.ranks, patience=60)
    whole, piece, small = (np.full(n, 1e-3, np.float32) for n in (values, part, 1024))
    parts = [part] * options.ranks
    sets = [Group(f"bench {number}", server=options.address, rank=options.rank, size=options.ranks, patience=60)
            for number in range(SETS)]
    shares = np.array_split(whole, SETS)

    def at_once():
        for handle in [one.all_reduce(share, out=share, async_op=True) for one, share in zip(sets, shares)]:
            handle.wait()

    return group.barrier, {
        "sets_at_once": at_once,
        "allreduce_fp32": lambda: group.all_reduce(whole, out=whole),
        "allreduce_fp16": lambda: group.all_reduce(whole, out=whole, wire="fp16"),
        "reduce_scatter": lambda: group.reduce_scatter(whole, sizes=parts),
        "all_gather": lambda: group.all_gather(piece, sizes=parts),
    }, lambda: group.all_reduce(small, out=small)


def gloo_operations():
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{options.address}", rank=options.rank,
                            world_size=options.ranks)
    whole, piece, small = (torch.full((n,), 1e-3) for n in (values, part, 1024))
    outputs = list(torch.empty(values).split(part))
    sets = [dist.new_group() for _ in range(SETS)]
    shares = whole.tensor_split(SETS)

    def at_once():
        for work in [dist.all_reduce(share, group=one, async_op=True) for one, share in zip(sets, shares)]:
            work.wait()

    return dist.barrier, {
        "sets_at_once": at_once,
        "allreduce_fp32": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter(piece, list(whole.split(part))),
        "all_gather": lambda: dist.all_gather(outputs, piece),
    }, lambda: dist.all_reduce(small)


barrier, operations, small_call = recon_operations() if options.backend == "recon" else gloo_operations()
seconds = {}


def timed(call):
    barrier()
    start = time.monotonic()
    call()
    return time.monotonic() - start


for name, operation in operations.items():
    try:
        seconds[name] = [timed(operation) for _ in range(options.rounds)]
    except (RuntimeError, NotImplementedError) as error:
        if options.backend != "gloo":
            raise
        seconds[name] = []  # This version's gloo does not have it.
        print(f"gloo has no {name}: {error}", flush=True)
seconds["small"] = [timed(small_call) for _ in range(SMALL_ROUNDS)]
barrier()
print(json.dumps(seconds), flush=True)
