"""A classifier in JAX as a worker of a job: `recon.Worker` takes its arrays and gives indices of samples."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import recon


def make_data(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    centers = np.random.default_rng(5).normal(size=(10, 32))
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, samples)
    return (centers[labels] + random.normal(size=(samples, 32))).astype(np.float32), labels


def logits(parameters: dict, x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ parameters["hidden.w"] + parameters["hidden.b"])
    return hidden @ parameters["out.w"] + parameters["out.b"]


def mean_loss(parameters: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(parameters, x)), y[:, None], axis=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    x, y = make_data(10_000, seed=1)
    test_x, test_y = make_data(1000, seed=2)
    keys = jax.random.split(jax.random.key(3), 2)
    initial = {"hidden.w": jax.random.normal(keys[0], (32, 64)) * (2 / 32) ** 0.5, "hidden.b": jnp.zeros(64),
               "out.w": jax.random.normal(keys[1], (64, 10)) * (1 / 64) ** 0.5, "out.b": jnp.zeros(10)}
    gradient = jax.jit(jax.value_and_grad(mean_loss))

    def evaluate(parameters: dict) -> dict:
        correct = jnp.sum(jnp.argmax(logits(parameters, test_x), axis=1) == test_y)
        loss = mean_loss(parameters, test_x, test_y)
        return {"loss": (loss * len(test_y), len(test_y)), "accuracy": (correct, len(test_y))}

    with recon.Worker(initial, samples=len(x), batch=options.batch, epochs=options.epochs,
                      optimizer=recon.Adam(lr=2e-3), evaluate=evaluate, model="jax_mlp") as worker:
        for indices in worker.batches():
            # JAX may keep the memory of an array that it is given; these parameters are the worker's own.
            parameters = {name: jnp.array(value, copy=True) for name, value in worker.parameters().items()}
            loss, gradients = gradient(parameters, x[indices], y[indices])
            worker.push(gradients, loss=loss)


if __name__ == "__main__":
    main()
