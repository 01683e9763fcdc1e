"""A worker that counts its batches, in steps that it makes with others. Prints what it has counted."""

import json

import recon.torch as rt
import torch
from codecs_test import Counts
from torch import nn
from torch_small import BATCH, DATA, loss_of, make_model, sgd

torch.set_num_threads(1)
model = make_model(nn.BatchNorm1d(32), Counts(2_000_001))
optimizer = sgd(model)
loader = rt.DataLoader(DATA, batch_size=BATCH)
job = rt.join(model, optimizer, loader, optimizer_on="server", epochs=4, codec="topk:0.1")
for _ in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
print(json.dumps({"step": job.step, "tracked": int(model[2].num_batches_tracked), "seen": int(model[3].seen)}))
