"""The example of a transformer in three stages: six workers, one of which is killed and replaced."""

import os
import subprocess
import sys
import unittest

try:
    import torch._dynamo  # noqa: F401: so that workers have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from jobs import HERE, Server
from ranks import EXAMPLES, Rank, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]
STEPS = ("--steps", "120")
KILLED = 3  # Of the encoder.


class Pipeline(unittest.TestCase):
    def test_it_trains_to_the_loss_of_one_process_while_a_worker_is_killed(self) -> None:
        with Server(BINARIES, "--evict-after", "30s") as server:
            workers = [self.worker(server, rank, f"w{rank}") for rank in range(6) if rank != KILLED]
            workers.insert(KILLED, Rank(server, f"w{KILLED}", HERE / "stands_still.py", "pipeline.py", *STEPS,
                                        RECON_RANK=str(KILLED)))
            workers[KILLED].wait_for_text("stands still")
            workers[KILLED].kill()
            for rank in (2, 4):
                workers[rank].wait_for_text("is lost")
            workers[KILLED] = self.worker(server, KILLED, "again")
            all_end_well(workers)
            self.assertIn("goes on with step 30\n", workers[KILLED].log())
            alone = subprocess.run([sys.executable, EXAMPLES / "pipeline_model.py", *STEPS], check=True, text=True,
                                   capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
            for rank in (4, 5):
                loss, expected = self.loss(workers[rank].log()), self.loss(alone)
                self.assertLess(abs(loss / expected - 1), 0.02, (loss, expected))
            self.assertLess(expected, 3.5)  # A guess among 256 has 5.5.

    def worker(self, server: Server, rank: int, name: str) -> Rank:
        return Rank(server, name, EXAMPLES / "pipeline.py", *STEPS, RECON_RANK=str(rank))

    def loss(self, log: str) -> float:
        self.assertRegex(log.splitlines()[-1], r"^loss \d\.\d{4}$")
        return float(log.split()[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
