"""A small GPT on the sources of Python's library, with workers that come and go: recon run --workers 2 gpt.py"""

import argparse
import math
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
import recon.torch as rt

from data import python_sources
from models import GPT

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--text", type=int, default=500_000, metavar="BYTES", help="how much text is trained with")
parser.add_argument("--context", type=int, default=64)
parser.add_argument("--width", type=int, default=96)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--heads", type=int, default=3)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--warmup", type=int, default=50, metavar="STEPS")
parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16: for GPUs, and CPUs that have it")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
train, test = python_sources(args.context, args.text)
test_loader = DataLoader(test, batch_size=args.batch)


def forward(model, x, y):
    with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
        scores = model(x.to(device))
    return scores, F.cross_entropy(scores.float().flatten(0, 1), y.to(device).flatten())


def validate(model):
    model.eval()
    loss = correct = count = 0
    with torch.no_grad():
        for x, y in test_loader:
            scores, mean = forward(model, x, y)
            loss += mean.item() * y.numel()
            correct += (scores.argmax(dim=-1).cpu() == y).sum().item()
            count += y.numel()
    model.train()
    return {"loss": (loss, count), "accuracy": (correct, count)}


def rate(step):
    """The learning rate's factor: it rises for the warm-up, then follows a cosine to a tenth."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, steps - args.warmup)
    return 0.55 + 0.45 * math.cos(math.pi * min(1, done))


model = GPT(args.context, args.width, args.layers, args.heads).to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              lr=args.lr, betas=(0.9, 0.95))
loader = rt.DataLoader(train, batch_size=args.batch)
steps = args.epochs * math.ceil(len(train) / args.batch)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
rt.join(model, optimizer, loader, evaluate=validate, epochs=args.epochs, scheduler=scheduler)

for epoch in range(args.epochs):
    started, pieces, loss = time.monotonic(), 0, None
    for x, y in loader:
        loss = forward(model, x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        pieces += len(x)
    if pieces:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {pieces / (time.monotonic() - started):.0f} samples/s", flush=True)

correct, count = validate(model)["accuracy"]
print(f"accuracy {correct / count:.3f}")
