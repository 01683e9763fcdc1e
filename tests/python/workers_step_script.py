"""A worker of a job whose workers have the optimizer: SGD and AdamW, clipping, a cosine, an average of the model, a clamp.
Writes what it did in each step, and the model in the end. Environment: RECON_SERVER, RECON_NAME."""

import argparse
import copy
import json
import os
import pathlib
import time

import torch

import recon
import recon.torch as rt
from torch_small import BATCH, DATA, loss_of, make_model

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pause", type=float, default=0.0, help="seconds of each batch")
parser.add_argument("--hidden", type=int, default=32, help="values between the model's layers")
parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the record and the model")
arguments = parser.parse_args()

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
name = os.environ["RECON_NAME"]
model = make_model(hidden=arguments.hidden)
if name != "first":  # The job's state is the first worker's.
    torch.nn.init.constant_(model[0].weight, 0.5)
momentum = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.02, momentum=0.9)
adamw = torch.optim.AdamW([p for p in model.parameters() if p.dim() != 2], lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=30)
average = copy.deepcopy(model)
loader = rt.DataLoader(torch.utils.data.TensorDataset(DATA.tensors[0].double(), DATA.tensors[1]), batch_size=BATCH)
job = rt.join(model, [momentum, adamw], loader, epochs=arguments.epochs, scheduler=schedule, optimizer_on="workers",
              also={"average": average},
              job_settings={"split_samples": 2 * BATCH}, codec="fp32")
record = open(arguments.out / f"{name}-{os.getpid()}.jsonl", "w")
try:
    for epoch in range(arguments.epochs):
        for batch in loader:
            step, indices = job.step, job.indices()
            momentum.zero_grad()
            adamw.zero_grad()
            loss_of(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            momentum.step()
            adamw.step()
            schedule.step()
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters()):
                    other.clamp_(-0.6, 0.6)
                    one.lerp_(other, 0.1)
            print(json.dumps({"step": step, "epoch": epoch, "indices": indices,
                              "scheduled": schedule.last_epoch}), file=record, flush=True)
            time.sleep(arguments.pause)
except recon.ReconError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    raise
torch.save({"model": model.state_dict(), "average": average.state_dict(), "adamw": adamw.state_dict(), "step": job.step,
            "rate": schedule.get_last_lr()}, arguments.out / f"{name}.pt")
