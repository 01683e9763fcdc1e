"""A rank that sends pickles with a payload, or announces sizes that it does not have, with a real server: nothing of it runs at the
others, they make no room for it, and they say what came from whom."""

import os
import sys
import unittest
import unittest.mock

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

from jobs import HERE, Server
from ranks import Rank, all_end_well

BINARIES = os.environ["RECON_TEST_BIN"]
PATIENCE = ("--evict-after", "30s")  # A busy machine is no dead member.
SCRIPT = HERE / "hostile_ranks.py"
OBJECTS = HERE / "object_ranks.py"
SIZED = ("broadcast_object", "allgather_object", "allgather", "all_gather", "gather", "all_to_all", "elastic")
CASES = ("broadcast_object", "allgather_object", "broadcast_optimizer_state", "ObjectState", "TorchState", "ElasticSampler",
         "elastic")


class Hostile(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server(BINARIES, *PATIENCE)
        self.addCleanup(self.server.__exit__)
        self.marker = self.server.root / "ran"

    def ranks(self, case: str, name: str, sends: str) -> list[Rank]:
        """The first rank, which sends so, and another one."""
        return [Rank(self.server, f"{name}{number}", SCRIPT, case, sends if number == 0 else "good", str(self.marker), RECON_SET=name,
                     RECON_RANK=str(number), RECON_SIZE="2") for number in range(2)]

    def test_a_rank_that_sends_pickles_runs_nothing_at_the_others_and_is_named(self) -> None:
        for case in CASES:
            for sends, says in (("raw", "bytes that are no value of this package"), ("marked", "has sent a pickle")):
                with self.subTest(case=case, sends=sends):
                    hostile, victim = self.ranks(case, f"{case}-{sends}", sends)
                    self.assertEqual(victim.wait(), 1, victim.log())
                    self.assertIn(says, victim.log())
                    self.assertIn("a process of 'hostile'" if case == "elastic" else "rank 0 has sent", victim.log())
                    hostile.kill()
                    self.assertFalse(self.marker.exists())

    def test_a_rank_that_announces_a_size_that_cannot_be_is_named_before_there_is_room_for_it(self) -> None:
        more_than_a_machine, more_than_is_allowed = 1 << 45, 1 << 21
        with unittest.mock.patch.dict(os.environ, RECON_RECEIVE_BYTES_MAX="1000000"):
            self.announce(more_than_is_allowed, r"announces [\d,]+ bytes.*: this process takes 1,000,000 at most")
            self.announce(-1, "announces -1 ")
        self.announce(more_than_a_machine, r"announces [\d,]+ bytes.*: this process takes [\d,]+ at most in one call "
                                           r"\(RECON_RECEIVE_BYTES_MAX\)")

    def announce(self, number: int, says: str) -> None:
        for case in SIZED:
            with self.subTest(case=case, number=number):
                hostile, victim = self.ranks(case, f"{case}{number}", str(number))
                self.assertEqual(victim.wait(), 1, victim.log())
                self.assertRegex(victim.log(), f"a process of 'hostile', {says}" if case == "elastic" else f"rank 0 {says}")
                hostile.kill()

    def test_ranks_that_send_values_end_well(self) -> None:
        for case in (*CASES, *SIZED):
            with self.subTest(case=case):
                all_end_well(self.ranks(case, f"{case}-good", "good"))


class Own(unittest.TestCase):
    """Objects of a script's own classes."""

    def ranks(self, server: Server, takes: tuple[str, str], name: str = "own") -> list[Rank]:
        return [Rank(server, f"{name}{number}", OBJECTS, RECON_SET=name, RECON_RANK=str(number), RECON_SIZE="2",
                     RECON_ALLOW_PICKLE=takes[number]) for number in range(2)]

    def test_they_travel_where_both_ranks_say_so(self) -> None:
        with Server(BINARIES, *PATIENCE) as server:
            all_end_well(self.ranks(server, ("1", "1")))

    def test_a_rank_that_does_not_say_so_takes_none_whatever_the_sender_says(self) -> None:
        with Server(BINARIES, *PATIENCE) as server:
            sender, taker = self.ranks(server, ("1", ""))
            self.assertEqual(taker.wait(), 1)
            self.assertIn("rank 0 has sent a pickle", taker.log())
            self.assertIn("RECON_ALLOW_PICKLE=1", taker.log())
            sender.kill()

    def test_a_sender_that_does_not_say_so_names_the_object_and_the_others_hear_it(self) -> None:
        with Server(BINARIES, *PATIENCE) as server:
            sender, taker = self.ranks(server, ("", "1"))
            for rank, kind in ((sender, "TypeError"), (taker, "recon.Refused")):
                self.assertEqual(rank.wait(), 1)
                self.assertIn("the value['own'] is a object_ranks.Own, which cannot travel", rank.log())
                self.assertIn(kind.rsplit(".", 1)[-1], rank.log())
                self.assertIn("pickle=True", rank.log())

    def test_no_rank_takes_any_with_a_server_that_is_open_to_everybody(self) -> None:
        with Server(BINARIES, *PATIENCE, "--open") as server:
            for rank in self.ranks(server, ("1", "1")):
                self.assertEqual(rank.wait(), 1)
                self.assertIn("the server is open to everybody (--open)", rank.log())
            all_end_well([Rank(server, f"plain{number}", SCRIPT, "broadcast_object", "good", "-", RECON_SET="plain",
                               RECON_RANK=str(number), RECON_SIZE="2") for number in range(2)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
