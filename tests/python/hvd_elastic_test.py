"""recon.hvd.elastic with a real server: ranks that die and come, and a server that does."""

import itertools
import os
import pathlib
import random
import sys
import time
import unittest

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from jobs import HERE, Server, wait_for
from ranks import EXAMPLES, Rank, accuracy_of, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]
PATIENCE = ("--evict-after", "30s")  # A busy machine is no dead member.
SCRIPT = HERE / "hvd_ranks.py"


def batches_of(rank: Rank) -> int:
    """The last one that it has said."""
    return max((int(line.split()[1]) for line in rank.log().splitlines() if line.startswith("batch ")), default=0)


class Elastic(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server(BINARIES, *PATIENCE)
        self.addCleanup(self.server.__exit__)

    def rank(self, number: int, *arguments: str, script=SCRIPT, **environment: str) -> Rank:
        return Rank(self.server, f"r{number}", script, *arguments, **environment)

    def test_elastic_ranks_that_do_not_miss_who_dies_lose_no_batch(self) -> None:
        end = self.server.root / "END"
        ranks = [self.rank(number, "elastic", str(end), RECON_ON_LOSS="shrink") for number in range(3)]
        for rank in ranks:
            rank.wait_for_text("of 3 ranks")
        said = len(ranks[1].log())
        ranks[0].kill()
        ranks[1].wait_for_text("of 2 ranks", said)
        end.touch()
        all_end_well(ranks[1:])
        for rank in ranks[1:]:
            batches = [int(line.split()[1]) for line in rank.log().splitlines() if line.startswith("batch")]
            self.assertEqual(batches, list(range(batches[0], batches[-1] + 1)))

    def test_elastic_ranks_go_on_without_who_dies_and_with_who_comes(self) -> None:
        end = self.server.root / "END"
        ranks = [self.rank(number, "elastic", str(end)) for number in range(3)]
        for rank in ranks:
            rank.wait_for_text("of 3 ranks")
        survivors = [ranks[0], ranks[2]]
        said = [len(rank.log()) for rank in survivors]
        ranks[1].kill()
        for rank, before in zip(survivors, said):
            rank.wait_for_text("reset: 2 ranks", before)
        newcomer = self.rank(3, "elastic", str(end))
        newcomer.wait_for_text("of 3 ranks, this is 2")  # Who has been there longest has the lowest rank.
        self.assertNotIn("batch 1 of", newcomer.log())
        end.touch()
        all_end_well([*survivors, newcomer])
        self.assertEqual(len({rank.log().splitlines()[-1] for rank in (*survivors, newcomer)}), 1)

    def test_elastic_ranks_outlive_the_server(self) -> None:
        end = self.server.root / "END"
        ranks = [self.rank(number, "elastic", str(end), RECON_MIN_SIZE="2") for number in range(2)]
        for rank in ranks:
            rank.wait_for_text("batch 5 of 2 ranks")
        said = [len(rank.log()) for rank in ranks]
        self.server.kill()
        self.server.start()
        for rank, before in zip(ranks, said):
            rank.wait_for_text("reset: 2 ranks", before)
        end.touch()
        all_end_well(ranks)

    def test_who_takes_a_lost_rank_gets_the_state_even_as_rank_0(self) -> None:
        end = self.server.root / "END"
        first, second = (self.rank(number, "elastic", str(end), RECON_RANK=str(number), RECON_SIZE="2")
                         for number in range(2))
        first.wait_for_text("batch 5 of")
        first.kill()
        again = self.rank(2, "elastic", str(end), RECON_RANK="0", RECON_SIZE="2")
        again.wait_for_text("of 2 ranks, this is 0")
        self.assertNotIn("batch 1 of", again.log())
        end.touch()
        all_end_well([again, second])

    def test_who_dies_before_it_has_the_state_leaves_it_to_those_who_have(self) -> None:
        end, die = self.server.root / "END", self.server.root / "DIE"

        def start(number: int, rank: int, **environment: str) -> Rank:
            return self.rank(number, "elastic", str(end), RECON_RANK=str(rank), RECON_SIZE="3", **environment)

        ranks = [start(0, 0), start(1, 1), start(2, 2, DIE_IN_SYNC=str(die))]
        for rank in ranks:
            rank.wait_for_text("batch 5 of")
        ranks[0].kill()
        die.touch()
        said = len(ranks[1].log())
        again = [start(3, 0)]
        self.assertEqual(ranks[2].wait(), 9)
        again.append(start(4, 2))
        for rank in again:
            rank.wait_for_text("of 3 ranks")
            self.assertNotIn("batch 1 of", rank.log())
        ranks[1].wait_for_text("of 3 ranks", said)
        self.assertNotIn("batch 1 of", ranks[1].log()[said:])
        self.assertIn("goes back to its last commit", ranks[1].log())
        end.touch()
        all_end_well([ranks[1], *again])

    def test_who_has_joined_meets_a_newcomer_with_the_others_and_loses_nothing(self) -> None:
        end = self.server.root / "END"
        ranks = [self.rank(number, "elastic_join", str(end), RECON_MIN_SIZE="3") for number in range(3)]
        wait_for("a rank that has joined", lambda: any("joins 3" in rank.log() for rank in ranks))
        ranks.append(self.rank(3, "elastic_join", str(end), RECON_MIN_SIZE="3"))
        wait_for("all four", lambda: sum("of 4 ranks" in rank.log() for rank in ranks) == 3
                 and any("joins 4" in rank.log() for rank in ranks))
        end.touch()
        all_end_well(ranks)
        for rank in ranks:
            self.assertNotIn("goes back", rank.log())

    def test_ranks_and_the_server_die_at_any_moment(self) -> None:
        seed = int(os.environ.get("RECON_FIRST_SEED", random.SystemRandom().randrange(1 << 31)))
        print(f"seed {seed}", flush=True)
        chance, end, number = random.Random(seed), self.server.root / "END", itertools.count()
        on_loss = chance.choice(("raise", "shrink"))

        def start() -> Rank:
            return self.rank(next(number), "elastic", str(end), RECON_ON_LOSS=on_loss)

        ranks, most = [start() for _ in range(3)], 0
        over = time.monotonic() + float(os.environ.get("RECON_CHAOS_SECONDS", "5"))
        while time.monotonic() < over:
            time.sleep(chance.random())  # The disturbance itself: nothing is waited for.
            self.assertFalse([rank.log() for rank in ranks if rank.ended()])
            victim = chance.choice(ranks)
            done = batches_of(victim)
            # Somebody has to have what it has.
            if max((batches_of(rank) for rank in ranks if rank is not victim), default=-2) >= done - 1:
                victim.kill()
                ranks.remove(victim)
                most = max(most, done)
            if len(ranks) < 4 and chance.random() < 0.7:
                ranks.append(start())
            if chance.random() < 0.1:
                self.server.kill()
                self.server.start()
        said = [len(rank.log()) for rank in ranks]
        for rank, before in zip(ranks, said):
            rank.wait_for_text(f"of {len(ranks)} ranks", before)
        end.touch()
        all_end_well(ranks)
        self.assertEqual(len({rank.log().splitlines()[-1] for rank in ranks}), 1)
        self.assertGreaterEqual(batches_of(ranks[0]), most - 1)

    def test_the_elastic_example_trains_while_a_rank_is_killed(self) -> None:
        options = ("--epochs", "2", "--samples", "16000", "--batches-per-commit", "5")

        def start(number: int, script: pathlib.Path, *arguments: str) -> Rank:
            return self.rank(number, *arguments, *options, script=script, RECON_MIN_SIZE="2")

        ranks = [start(0, EXAMPLES / "hvd_elastic.py"), start(1, HERE / "stands_still.py", "hvd_elastic.py"),
                 start(2, EXAMPLES / "hvd_elastic.py")]
        ranks[1].wait_for_text("stands still")
        ranks[1].kill()
        all_end_well([ranks[0], ranks[2]])
        for rank in (ranks[0], ranks[2]):
            self.assertIn("2 ranks, this is rank", rank.log())
            self.assertGreater(accuracy_of(rank), 0.6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
