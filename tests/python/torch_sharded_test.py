"""What shards a model over torch.distributed works over recon: FSDP2 and its checkpoints, and SyncBatchNorm."""

import os
import sys
import unittest

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp  # noqa: F401
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from jobs import HERE, Server
from ranks import Rank, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]


class Sharded(unittest.TestCase):
    def ranks(self, case: str) -> list[Rank]:
        with Server(BINARIES, "--evict-after", "30s") as server:
            ranks = [Rank(server, f"r{rank}", HERE / "torch_sharded_ranks.py", str(rank), str(server.root), case)
                     for rank in range(2)]
            all_end_well(ranks)
            return [rank.log() for rank in ranks]

    def test_fsdp2_and_its_checkpoints_equal_one_process(self) -> None:
        self.ranks("shards")

    def test_sync_batch_norm_equals_one_process(self) -> None:
        said = "".join(self.ranks("batch_norm"))
        if "SKIP: " in said:
            self.skipTest(said.splitlines()[0].removeprefix("SKIP: "))


if __name__ == "__main__":
    unittest.main(verbosity=2)
