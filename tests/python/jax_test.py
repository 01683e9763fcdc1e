"""recon.jax with two processes and a real server. As a program with the argument "rank" it is one of them."""

import importlib.util
import os
import sys
import unittest

ABSENT = [package for package in ("jax", "optax") if importlib.util.find_spec(package) is None]
if ABSENT:
    print(f"SKIP: no {', '.join(ABSENT)}")
    sys.exit(77)

from jobs import Script, Server

BINARIES = os.environ["RECON_TEST_BIN"]


class Jax(unittest.TestCase):
    def test_two_processes_reduce_pytrees_and_train_as_one_does(self) -> None:
        with Server(BINARIES, "--evict-after", "30s") as server:
            ranks = [Script(server, f"r{rank}", "rank", script="jax_test.py", RECON_RANK=str(rank), RECON_SIZE="2",
                            JAX_PLATFORMS="cpu") for rank in range(2)]
            for rank in ranks:
                self.assertEqual(rank.wait(), 0, rank.log())
                self.assertIn("ok", rank.log())


def check_trees() -> None:
    rank = recon.jax.rank()
    tree = {"a": jnp.arange(6.0).reshape(2, 3) + rank, "b": [jnp.float32(rank), jnp.ones(4, jnp.bfloat16)],
            "c": np.full(300_000, rank, np.int32)}
    for call in (recon.jax.all_reduce, jax.jit(recon.jax.all_reduce, static_argnums=1)):
        total = call(tree, "sum")
        np.testing.assert_array_equal(total["a"], 2 * np.arange(6.0).reshape(2, 3) + 1)
        assert total["b"][0] == 1 and total["b"][0].shape == () and total["b"][1].dtype == jnp.bfloat16
        np.testing.assert_array_equal(total["b"][1].astype(np.float32), np.full(4, 2))
        assert total["c"].dtype == np.int32 and int(total["c"][-1]) == 1
    np.testing.assert_array_equal(recon.jax.all_reduce(tree["a"], wire="fp16"), np.arange(6.0).reshape(2, 3) + 0.5)
    np.testing.assert_allclose(recon.jax.all_reduce(jnp.ones(3), "adasum"), np.ones(3))
    assert recon.jax._host(0.5).dtype == np.float32 and recon.jax.all_reduce([rank], "sum")[0].dtype == np.int32
    np.testing.assert_array_equal(recon.jax.broadcast(tree["a"], 1), np.arange(6.0).reshape(2, 3) + 1)


def train(optimizer, params: dict, parts: slice) -> tuple[dict, float]:
    """Forty steps of a small network with some of each batch."""
    @jax.jit
    def step(params, state, x, y):
        loss, gradients = jax.value_and_grad(
            lambda p: jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, random, loss = optimizer.init(params), np.random.default_rng(3), 0.0
    for _ in range(40):
        x = random.normal(size=(32, 5)).astype(np.float32)
        y = np.sin(x.sum(axis=1, keepdims=True))
        params, state, loss = step(params, state, x[parts], y[parts])
    return params, float(loss)


def run_rank() -> None:
    recon.jax.init(timeout=120)
    rank = recon.jax.rank()
    check_trees()
    keys = jax.random.split(jax.random.key(rank), 2)
    mine = {"w": jax.random.normal(keys[0], (5, 16)), "v": jax.random.normal(keys[1], (16, 1)) / 4}
    params = recon.jax.broadcast(mine)
    together, _ = train(recon.jax.distributed(optax.adam(0.02)), params, slice(rank, None, 2))
    alone, loss = train(optax.adam(0.02), params, slice(None))
    for name in params:
        np.testing.assert_allclose(together[name], alone[name], atol=2e-4)
    assert loss < 0.5, loss
    recon.jax.leave()
    print("ok", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax
        import recon.jax
        run_rank()
    else:
        unittest.main(verbosity=2)
