"""A convolutional network on Fashion-MNIST as a script for Horovod has it; but for the import, which would be
horovod.torch: recon run --workers 2 hvd_mnist.py"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

import recon.hvd as hvd
from data import fashion_mnist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=64, help="of each rank")
parser.add_argument("--lr", type=float, default=0.01, help="of one rank; it is multiplied by the number of ranks")
parser.add_argument("--samples", type=int, default=60000, help="to train with")
parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as fp16")
parser.add_argument("--adasum", action="store_true")
parser.add_argument("--batches-per-step", type=int, default=1)
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())

train, test = fashion_mnist()
train = Subset(train, range(args.samples))
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
test_sampler = DistributedSampler(test, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
test_loader = DataLoader(test, batch_size=1000, sampler=test_sampler)

model = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)).to(device)
scale = args.batches_per_step * (1 if args.adasum else hvd.size())
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=0.5)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                     compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
                                     op=hvd.Adasum if args.adasum else hvd.Average,
                                     backward_passes_per_step=args.batches_per_step)


def train_pass(epoch):
    model.train()
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.to(device)), y.to(device)) / args.batches_per_step
        loss.backward()
        if (number + 1) % args.batches_per_step == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % 100 == 0 and hvd.rank() == 0:
            print(f"epoch {epoch + 1}, batch {number}: loss {loss.item():.4f}", flush=True)
    # What is left of a pass that does not come out even.
    if len(loader) % args.batches_per_step:
        optimizer.step()
        optimizer.zero_grad()


def mean(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test_pass():
    model.eval()
    loss = correct = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            scores = model(x.to(device))
            loss += F.cross_entropy(scores, y.to(device), reduction="sum").item()
            correct += (scores.argmax(dim=1) == y.to(device)).sum().item()
    loss, accuracy = mean(loss / len(test_sampler), "loss"), mean(correct / len(test_sampler), "accuracy")
    if hvd.rank() == 0:
        print(f"test: loss {loss:.4f}\naccuracy {accuracy:.3f}", flush=True)


for epoch in range(args.epochs):
    train_pass(epoch)
    test_pass()
