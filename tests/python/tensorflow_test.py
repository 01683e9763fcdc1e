"""recon.tensorflow with two processes and a real server. As a program with the argument "rank" it is one of them."""

import importlib.util
import os
import sys
import unittest

if importlib.util.find_spec("tensorflow") is None:
    print("SKIP: no tensorflow")
    sys.exit(77)

from jobs import Script, Server

BINARIES = os.environ["RECON_TEST_BIN"]


class TensorFlow(unittest.TestCase):
    def test_two_processes_train_as_one_does(self) -> None:
        with Server(BINARIES, "--evict-after", "30s") as server:
            ranks = [Script(server, f"r{rank}", "rank", script="tensorflow_test.py", RECON_RANK=str(rank),
                            RECON_SIZE="2", CUDA_VISIBLE_DEVICES="", TF_NUM_INTRAOP_THREADS="1") for rank in range(2)]
            for rank in ranks:
                self.assertEqual(rank.wait(), 0, rank.log())
                self.assertIn("ok", rank.log())


def network(seed: int):
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(16, activation="tanh"),
                                tf.keras.layers.Dense(1)])


def batches():
    random = np.random.default_rng(3)
    for _ in range(30):
        x = random.normal(size=(32, 5)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1, keepdims=True))


def train(model, parts: slice, wrap) -> float:
    """The last loss of a loop of its own with a tape."""
    optimizer = tf.keras.optimizers.Adam(0.02)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for x, y in batches():
        loss = step(tf.constant(x[parts]), tf.constant(y[parts]))
    return float(loss)


def check_tape(rank: int) -> None:
    model, alone = network(rank), network(0)
    rtf.broadcast_variables(model.variables, 0)
    train(model, slice(rank, None, 2), rtf.DistributedGradientTape)
    loss = train(alone, slice(None), lambda tape: tape)
    for mine, other in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(mine, other, atol=2e-4)
    assert loss < 0.5, loss


def check_fit(rank: int) -> None:
    """Keras' own loop: the same weights everywhere, metrics that are means."""
    model = network(rank)
    x, y = (np.concatenate(part) for part in zip(*batches()))
    model.compile(rtf.DistributedOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse", jit_compile=False)
    history = model.fit(x[rank::2], y[rank::2], batch_size=16, epochs=2, verbose=0,
                        callbacks=[rtf.BroadcastGlobalVariables(0), rtf.MetricAverage()])
    everybody = rtf.init()
    for weights in model.get_weights():
        np.testing.assert_array_equal(everybody.broadcast(weights, 1), everybody.broadcast(weights, 0))
    losses = np.array(history.history["loss"])
    np.testing.assert_array_equal(everybody.broadcast(losses, 1), losses)
    assert losses[-1] < losses[0], losses


def run_rank() -> None:
    rtf.init(timeout=120)
    rank = rtf.rank()
    mine = tf.constant([[1.0, 2.0]]) * (rank + 1)
    np.testing.assert_array_equal(rtf.all_reduce(mine), [[1.5, 3.0]])
    np.testing.assert_array_equal(rtf.all_reduce(tf.constant(rank), "sum"), 1)
    np.testing.assert_array_equal(rtf.all_reduce(tf.cast(mine, tf.bfloat16), "max"), [[2.0, 4.0]])
    np.testing.assert_array_equal(rtf.all_reduce(mine, "sum", wire="fp16"), [[3.0, 6.0]])
    tape = rtf.DistributedGradientTape(tf.GradientTape())
    table, unused = tf.Variable([[1.0], [2.0], [3.0]]), tf.Variable(1.0)
    with tape:
        loss = tf.reduce_sum(tf.gather(table, [rank, 2]))
    gradient, none = tape.gradient(loss, [table, unused])
    np.testing.assert_array_equal(gradient, [[0.5], [0.5], [1.0]])
    assert none is None
    check_tape(rank)
    check_fit(rank)
    rtf.leave()
    print("ok", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        if os.environ["RECON_RANK"] == "1":
            import recon.collective  # Before TensorFlow as well as after: both have a protobuf.
        import numpy as np
        import tensorflow as tf
        import recon.tensorflow as rtf
        run_rank()
    else:
        unittest.main(verbosity=2)
