"""Ratings that users give to items, learnt with embeddings whose gradients are sparse:
recon run --workers 2 recommender.py"""

import argparse
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
import recon.torch as rt

from data import ratings
from models import Recommender

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--users", type=int, default=5000)
parser.add_argument("--items", type=int, default=2000)
parser.add_argument("--ratings", type=int, default=400_000)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--embedding-lr", type=float, default=15.0, help="a row is in few batches, each counts for 1/batch")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
train, test = ratings(args.users, args.items, args.ratings)
test_loader = DataLoader(test, batch_size=1000)


def validate(model):
    """A rating counts as right when it is the nearest to what the model says."""
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for pairs, given in test_loader:
            pairs, given = pairs.to(device), given.to(device)
            expected = model(pairs)
            loss += F.mse_loss(expected, given, reduction="sum").item()
            correct += (expected.round().clamp(1, 5) == given).sum().item()
    model.train()
    return {"loss": (loss, len(test)), "accuracy": (correct, len(test))}


model = Recommender(args.users, args.items, args.width).to(device)
optimizer = torch.optim.SGD([{"params": model.mlp.parameters(), "lr": args.lr},
                             {"params": [model.users.weight, model.items.weight], "lr": args.embedding_lr}])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.6)
loader = rt.DataLoader(train, batch_size=args.batch)
rt.join(model, optimizer, loader, evaluate=validate, epochs=args.epochs)

for epoch in range(args.epochs):
    started, samples, loss = time.monotonic(), 0, None
    for pairs, given in loader:
        pairs, given = pairs.to(device), given.to(device)
        loss = F.mse_loss(model(pairs), given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += len(given)
    scheduler.step()
    if samples:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {samples / (time.monotonic() - started):.0f} samples/s", flush=True)

correct, count = validate(model)["accuracy"]
print(f"accuracy {correct / count:.3f}")
