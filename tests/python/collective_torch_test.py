"""torch.distributed over recon: every operation, DDP beside gloo, and a rank that dies."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from jobs import HERE, Server

try:
    import torch  # noqa: F401
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

BINARIES = os.environ["RECON_TEST_BIN"]


class Backend(unittest.TestCase):
    def test_operations_and_ddp_equal_those_of_gloo(self) -> None:
        with Server(BINARIES, "--evict-after", "30s") as server, tempfile.TemporaryDirectory() as directory:
            ranks = [subprocess.Popen(
                [sys.executable, HERE / "collective_torch_ranks.py", str(rank), pathlib.Path(directory) / "meet"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "RECON_SERVER": server.address, "OMP_NUM_THREADS": "1",
                     "TORCH_DISTRIBUTED_DEBUG": "OFF"}) for rank in range(4)]
            for rank in ranks:
                self.addCleanup(rank.kill)
            outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
            for number, output in enumerate(outputs):
                with self.subTest(rank=number):
                    self.assertIn(f"rank {number} ok", output)
                    if number < 3:
                        self.assertIn(f"rank {number} was told", output)
                        self.assertTrue(output.endswith(f"rank {number} ends\n"), output)
                    self.assertEqual(ranks[number].returncode, 0, output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
