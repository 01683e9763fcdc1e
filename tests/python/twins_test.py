#!/usr/bin/env python3
"""The examples: each has a twin in plain PyTorch, which differs by a few lines. Prints each difference, and trains the
plain ones for a moment, where there is PyTorch. Exits with 77 (skipped) where there is none: the differences have been
tested then, all the same."""

import difflib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"
CHANGED_LINES_MAX = 6
LINES_MAX = 120
TRAIN_SECONDS = 300
NAMES = ["cnn", "finetune", "gpt", "recommender"]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def changed_lines(plain, ours):
    """Lines that only one of the two has: a line that is replaced counts twice."""
    lines = difflib.unified_diff(plain.read_text().splitlines(), ours.read_text().splitlines(), plain.name, ours.name,
                                 lineterm="", n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


class Twins(unittest.TestCase):
    def test_every_example_has_a_twin(self):
        without = {"data.py", "models.py", "numpy_softmax.py", "jax_mlp.py", "on_ray.py", "hvd_mnist.py", "hvd_elastic.py",
                   "pipeline.py", "pipeline_model.py"}
        scripts = {path.name for path in EXAMPLES.glob("*.py")} - without
        self.assertEqual(scripts, {f"{prefix}{name}.py" for name in NAMES for prefix in ("", "plain_")})

    def test_a_script_of_plain_pytorch_needs_few_lines_more(self):
        for name in NAMES:
            with self.subTest(name):
                changed = changed_lines(EXAMPLES / f"plain_{name}.py", EXAMPLES / f"{name}.py")
                print(f"\nplain_{name}.py -> {name}.py", *changed, sep="\n  ")
                self.assertLessEqual(len(changed), CHANGED_LINES_MAX)
                added = [line for line in changed if line.startswith("+")]
                for word in ("import recon.torch as rt", "rt.DataLoader(", "rt.join(model, optimizer, loader"):
                    self.assertEqual(sum(word in line for line in added), 1, word)

    def test_examples_are_short(self):
        for path in EXAMPLES.glob("*.py"):
            self.assertLess(len(path.read_text().splitlines()), LINES_MAX, path.name)


@unittest.skipUnless(HAS_TORCH, "there is no PyTorch: tools/setup.sh --tests")
class PlainOnes(unittest.TestCase):
    """Each trains with little data, and is better than a guess."""

    def accuracy(self, name, *arguments):
        done = subprocess.run([sys.executable, EXAMPLES / f"plain_{name}.py", "--epochs", "1", *arguments],
                              capture_output=True, text=True, timeout=TRAIN_SECONDS,
                              # Threads of one process that wait for each other are slow beside other tests.
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        last = done.stdout.splitlines()[-1]
        self.assertRegex(last, r"^accuracy \d\.\d{3}$")
        print(f"plain_{name}.py: {last}")
        return float(last.split()[1])

    def test_cnn_and_finetune(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = f"{folder}/backbone.pt"
            self.assertGreater(self.accuracy("cnn", "--width", "2", "--loaders", "0", "--save", saved), 0.5)
            self.assertGreater(self.accuracy("finetune", "--width", "2", "--backbone", saved), 0.6)

    def test_gpt(self):
        # A tenth of the bytes are spaces; whoever says so always is right that often.
        self.assertGreater(self.accuracy("gpt", "--text", "60000", "--width", "48", "--batch", "8"), 0.2)

    def test_recommender(self):
        self.assertGreater(self.accuracy("recommender", "--users", "500", "--items", "200", "--ratings", "60000"), 0.4)


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    for test, reason in program.result.skipped:
        print(f"twins: SKIPPED {re.sub('.*[.]', '', test.id())}: {reason}", file=sys.stderr)
    sys.exit(77 if program.result.skipped else 0)
