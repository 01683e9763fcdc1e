"""recon.torch.elastic with a real server: ranks that die and come, and a server that does."""

import json
import os
import random
import re
import sys
import time
import unittest

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from elastic_ranks import again
from jobs import HERE, Server
from ranks import Rank, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]
ROUNDS = int(os.environ.get("RECON_TEST_ROUNDS", "8"))
SEED = int(os.environ.get("RECON_TEST_SEED", "41"))


class Elastic(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server(BINARIES, "--evict-after", "30s")  # A busy machine is no dead member.
        self.addCleanup(self.server.__exit__)
        self.end = self.server.root / "END"

    def rank(self, number: int, **environment: str) -> Rank:
        """Each has parameters of its own, until it gets those of others."""
        return Rank(self.server, f"r{number}", HERE / "elastic_ranks.py", "train", str(self.end), NUMBER=str(number), **environment)

    def three(self, least: int) -> list[Rank]:
        """Rank 0, whose parameters all begin with, first."""
        ranks = [self.rank(number, MIN_SIZE=str(least)) for number in range(3)]
        for rank in ranks:
            rank.wait_for_text("step 1 of 3 ranks")
        return sorted(ranks, key=lambda rank: "this is 0" not in rank.log())

    def end_as_one_process(self, ranks: list[Rank], first: Rank) -> None:
        """They end with what one process has that does the same steps. All that are here at the end, or have been."""
        self.end.touch()
        all_end_well(ranks)
        steps: dict[int, str] = {}
        # Who has died may have done a step that nobody else has: those count who are here, or were the last ones.
        logs = sorted(self.server.root.glob("r*.log"), key=lambda log: (log not in [one.log_path for one in ranks],
                                                                        -int(log.stem[1:])))
        for log in logs:
            for step, whose in re.findall(r"^step (\d+) of \d+ ranks, this is \d+, of (\[.*\])$", log.read_text(), re.MULTILINE):
                known = steps.setdefault(int(step), whose)
                if log in logs[:len(ranks)]:
                    self.assertEqual(known, whose, f"step {step}")
        self.assertEqual(sorted(steps), list(range(1, len(steps) + 1)))
        expected = again(int(first.name[1:]), [json.loads(steps[step]) for step in sorted(steps)])
        for rank in ranks:
            result = torch.load(f"{self.end}.{rank.name}")
            self.assertEqual(result["steps"], len(steps))
            for key, value in result["state"].items():
                torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-9, msg=lambda text: f"{key}: {text}")

    def test_others_go_on_when_a_rank_is_killed_and_a_newcomer_gets_all_they_have(self) -> None:
        first, *others = self.three(2)
        said = [len(rank.log()) for rank in others]
        first.kill()
        for rank, before in zip(others, said):
            rank.wait_for_text("of 2 ranks", before)
        newcomer = self.rank(3, MIN_SIZE="2")
        newcomer.wait_for_text("of 3 ranks, this is 2")
        self.assertNotIn("step 1 of", newcomer.log())
        self.assertRegex(newcomer.log(), "of \\[.*, 3\\]")
        others[0].kill()
        said = len(newcomer.log())
        newcomer.wait_for_text("of 2 ranks", said)
        for rank in (others[1], newcomer):
            self.assertNotIn("not done", rank.log())
            steps = [int(line.split()[1]) for line in rank.log().splitlines() if line.startswith("step")]
            self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)))
        self.end_as_one_process([others[1], newcomer], first)

    def test_a_server_that_dies_costs_the_step_under_way(self) -> None:
        ranks = self.three(3)
        for _ in range(2):
            said = [len(rank.log()) for rank in ranks]
            self.server.kill()
            self.server.start()
            for rank, before in zip(ranks, said):
                rank.wait_for_text("of 3 ranks", before)
        self.end_as_one_process(ranks, ranks[0])

    def test_with_fewer_than_the_least_number_they_wait(self) -> None:
        first, *others = self.three(3)
        first.kill()
        newcomer = self.rank(3, MIN_SIZE="3")
        newcomer.wait_for_text("of 3 ranks")
        self.end_as_one_process([*others, newcomer], first)
        for rank in [*others, newcomer]:
            for line in rank.log().splitlines():
                if line.startswith("step"):
                    self.assertRegex(line, r"of 3 ranks, .* of \[\d+, \d+, \d+\]$")

    def test_random_deaths_cost_nothing(self) -> None:
        chance = random.Random(SEED)
        ranks = self.three(3)
        first = ranks[0]
        for number in range(3, 3 + ROUNDS):
            time.sleep(chance.uniform(0, 0.2))  # Anywhere in a step, or while others meet.
            if chance.random() < 0.2:
                self.server.kill()
                self.server.start()
            gone = chance.randrange(3)
            ranks[gone].kill()
            said = [len(rank.log()) for rank in ranks]
            ranks[gone] = self.rank(number, MIN_SIZE="3")
            said[gone] = 0
            for rank, before in zip(ranks, said):
                rank.wait_for_text("of 3 ranks", before)
        self.end_as_one_process(ranks, first)

    def test_gradients_are_those_of_all_and_wrong_calls_are_told(self) -> None:
        all_end_well([Rank(self.server, f"r{number}", HERE / "elastic_ranks.py", "uses", "-", NUMBER=str(number))
                      for number in range(2)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
