"""recon.hvd with several processes and a real server: operations, optimizers, join, sets, and a rank that dies."""

import os
import subprocess
import sys
import unittest

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from jobs import HERE, Server
from ranks import EXAMPLES, Rank, accuracy_of, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]
PATIENCE = ("--evict-after", "30s")  # A busy machine is no dead member.
SCRIPT = HERE / "hvd_ranks.py"


class Hvd(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server(BINARIES, *PATIENCE)
        self.addCleanup(self.server.__exit__)

    def ranks(self, count: int, *arguments: str, script=SCRIPT, **environment: str) -> list[Rank]:
        return [Rank(self.server, f"r{rank}", script, *arguments, RECON_RANK=str(rank), RECON_SIZE=str(count),
                     RECON_HOST=f"host{rank // 2}", **environment) for rank in range(count)]

    def test_operations_sets_optimizers_and_join(self) -> None:
        all_end_well(self.ranks(3, "operations"))

    def test_a_rank_that_dies_is_an_error_or_is_not_missed(self) -> None:
        for on_loss in ("raise", "shrink"):
            for call in ("allreduce", "allgather", "objects", "adasum", "root"):
                with self.subTest(on_loss=on_loss, call=call):
                    ranks = self.ranks(3, "loses_one", call, RECON_ON_LOSS=on_loss, RECON_SET=f"{on_loss} {call}")
                    all_end_well([ranks[0], ranks[2]])
                    self.assertEqual(ranks[1].wait(), 9)

    def test_what_an_optimizer_loads_is_there_before_others_wait(self) -> None:
        script = ("import sys, recon.meeting\n"
                  "class Meeting(recon.meeting.Meeting):\n"
                  "    def __init__(self, *options, **named):\n"
                  "        sys.exit(0 if 'torch._dynamo' in sys.modules else 'an optimizer loads torch._dynamo')\n"
                  "recon.meeting.Meeting = Meeting\n"
                  "import recon.hvd\n"
                  "recon.hvd.init()\n")
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_the_example_of_mnist_trains(self) -> None:
        ranks = self.ranks(2, "--epochs", "2", "--samples", "4000", "--lr", "0.05", script=EXAMPLES / "hvd_mnist.py")
        all_end_well(ranks)
        self.assertGreater(accuracy_of(ranks[0]), 0.6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
