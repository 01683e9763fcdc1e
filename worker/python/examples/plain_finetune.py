"""A trained ResNet learns other classes; its backbone is frozen, a new last layer is trained:
python plain_cnn.py --save backbone.pt; python plain_finetune.py --backbone backbone.pt"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from data import fashion_mnist
from models import ResNet

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backbone", metavar="FILE", required=True, help="what cnn.py --save has written")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--width", type=int, default=8, help="that of the backbone")
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

# Tops, trousers, dresses, shoes and bags: a class for each of the ten that the backbone knows.
COARSE = torch.tensor([0, 1, 0, 2, 0, 3, 0, 3, 4, 3])

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
train, test = fashion_mnist()
test_loader = DataLoader(test, batch_size=1000)


def validate(model):
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), COARSE[y].to(device)
            scores = model(x)
            loss += F.cross_entropy(scores, y, reduction="sum").item()
            correct += (scores.argmax(dim=1) == y).sum().item()
    return {"loss": (loss, len(test)), "accuracy": (correct, len(test))}


model = ResNet(args.width, classes=10)
model.load_state_dict(torch.load(args.backbone, weights_only=True))
for parameter in model.parameters():
    parameter.requires_grad = False
model.head = nn.Linear(model.head.in_features, 5)
model.to(device).eval()  # The backbone's means and variances are kept as they are, too.
optimizer = torch.optim.AdamW(model.head.parameters(), lr=args.lr)
loader = DataLoader(train, batch_size=args.batch, shuffle=True)

for epoch in range(args.epochs):
    started, samples, loss = time.monotonic(), 0, None
    for x, y in loader:
        x, y = x.to(device), COARSE[y].to(device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += len(x)
    if samples:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {samples / (time.monotonic() - started):.0f} samples/s", flush=True)

correct, count = validate(model)["accuracy"]
print(f"accuracy {correct / count:.3f}")
