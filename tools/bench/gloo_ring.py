"""One rank of an all-reduce over gloo, PyTorch's CPU back end: prints the seconds of each round as a JSON array. For
scale_out.py; needs python3-torch."""

import argparse
import json
import time

import torch
import torch.distributed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--address", required=True)
parser.add_argument("--parameters", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"tcp://{options.address}", rank=options.rank,
                                     world_size=options.ranks)
gradient = torch.full((options.parameters,), 1e-3)
seconds = []
for _ in range(options.steps):
    torch.distributed.barrier()
    start = time.monotonic()
    torch.distributed.all_reduce(gradient)
    seconds.append(time.monotonic() - start)
print(json.dumps(seconds), flush=True)
torch.distributed.barrier()
