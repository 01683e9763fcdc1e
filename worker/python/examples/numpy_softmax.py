"""Softmax regression on Fashion-MNIST with NumPy alone: the smallest worker there is."""

import gzip

import numpy as np
import recon

DATA = "/usr/share/datasets/fashion-mnist"


def read(name: str, header: int) -> np.ndarray:
    with gzip.open(f"{DATA}/{name}-ubyte.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def probabilities(p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    z = x @ p["weight"] + p["bias"]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


def evaluate(p: dict[str, np.ndarray]) -> dict[str, tuple[float, int]]:
    return {"accuracy": ((probabilities(p, test_x).argmax(axis=1) == test_y).sum(), len(test_y))}


train_x = read("train-images-idx3", 16).reshape(-1, 784) / np.float32(255)
test_x = read("t10k-images-idx3", 16).reshape(-1, 784) / np.float32(255)
train_y, test_y = read("train-labels-idx1", 8), read("t10k-labels-idx1", 8)
start = {"weight": np.zeros((784, 10), np.float32), "bias": np.zeros(10, np.float32)}
with recon.Worker(start, samples=len(train_x), batch=100, epochs=2, optimizer=recon.SGD(0.1),
                  evaluate=evaluate) as worker:
    for indices in worker.batches():
        x, y = train_x[indices], train_y[indices]
        error = probabilities(worker.parameters(), x)
        loss = -np.log(error[np.arange(len(y)), y] + 1e-9).mean()
        error[np.arange(len(y)), y] -= 1
        worker.push({"weight": x.T @ error / len(y), "bias": error.mean(axis=0)}, loss=loss)
    print(f"accuracy {evaluate(worker.parameters())['accuracy'][0] / len(test_y):.4f}")
