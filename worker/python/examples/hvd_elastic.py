"""The same with ranks that come and go, as Horovod has it; but for the import, which would be horovod.torch:
RECON_MIN_SIZE=1 recon run --workers 3 hvd_elastic.py"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

import recon.hvd as hvd
from data import fashion_mnist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=64, help="of each rank")
parser.add_argument("--lr", type=float, default=0.01, help="of one rank; it is multiplied by the number of ranks")
parser.add_argument("--samples", type=int, default=60000, help="to train with")
parser.add_argument("--batches-per-commit", type=int, default=10)
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
train_set, test_set = fashion_mnist()
train_set = Subset(train_set, range(args.samples))
sampler = hvd.elastic.ElasticSampler(train_set)
loader = DataLoader(train_set, batch_size=args.batch, sampler=sampler)

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, args.batch)
            state.batch += 1
            if state.batch % args.batches_per_commit == 0:
                print(f"epoch {state.epoch + 1}, batch {state.batch}, rank {hvd.rank()} of {hvd.size()}: "
                      f"loss {loss.item():.4f}", flush=True)
                state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()
    print(f"{hvd.size()} ranks, this is rank {hvd.rank()}", flush=True)


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)

with torch.no_grad():
    images, labels = test_set.tensors
    print(f"accuracy {(model(images).argmax(dim=1) == labels).float().mean():.3f}", flush=True)
