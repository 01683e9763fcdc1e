"""A small ResNet on Fashion-MNIST: python plain_cnn.py in one process, recon run --workers 2 cnn.py in two."""

import argparse
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from data import fashion_mnist
from models import ResNet, save

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--width", type=int, default=8, help="channels of the first stage; ResNet-18 has 64")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--loaders", type=int, default=1, help="processes that load data")
parser.add_argument("--save", metavar="FILE", help="the trained model's state dict")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
train, test = fashion_mnist()
test_loader = DataLoader(test, batch_size=1000)


def validate(model):
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            scores = model(x)
            loss += F.cross_entropy(scores, y, reduction="sum").item()
            correct += (scores.argmax(dim=1) == y).sum().item()
    model.train()
    return {"loss": (loss, len(test)), "accuracy": (correct, len(test))}


model = ResNet(args.width, classes=10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
loader = DataLoader(train, batch_size=args.batch, shuffle=True, num_workers=args.loaders)

for epoch in range(args.epochs):
    started, samples, loss = time.monotonic(), 0, None
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += len(x)
    scheduler.step()
    if samples:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {samples / (time.monotonic() - started):.0f} samples/s", flush=True)
    print("test:", ", ".join(f"{name} {total / count:.4f}" for name, (total, count) in validate(model).items()))

if args.save:
    save(model, args.save)
correct, count = validate(model)["accuracy"]
print(f"accuracy {correct / count:.3f}")
