"""Jobs whose workers have the optimizer, on three servers that are killed, as workers are: the model is that of the same steps
in one process. Environment: RECON_TEST_BIN, the programs."""

import pathlib
import random
import shutil
import tempfile
import time
import unittest
from collections.abc import Callable

import workers_step_test
from jobs import Script, wait_for


class OnThreeServers(workers_step_test.Workers):
    """Parts of the means and of the state are on three servers."""

    hidden = 4096  # Each server has gradients and state.

    def setUp(self) -> None:
        store = tempfile.TemporaryDirectory(prefix="recon-python-store-")
        self.addCleanup(store.cleanup)
        self.store = pathlib.Path(store.name)
        (self.store / "real").mkdir()
        self.point_to("real")
        self.server = self.serve("--servers", "3", "--replace-after", "1s", "--snapshot-dir", str(self.store / "snapshots"))
        self.servers = [self.server, *(self.serve("--join", self.server.address) for _ in range(2))]
        self.out = self.server.root / "out"
        self.out.mkdir()

    def point_to(self, directory: str) -> None:
        """The servers' snapshots lie there from now on."""
        (self.store / "next").symlink_to(directory)
        (self.store / "next").replace(self.store / "snapshots")

    def restart(self, *servers: int) -> None:
        for number in servers:
            self.servers[number].kill()
        for number in servers:
            self.servers[number].start()

    def await_steps(self, more: int) -> None:
        before = len(self.records())
        wait_for("steps", lambda: len(self.records()) >= before + more)

    def start_in_turn(self, *arguments: str) -> list[Script]:
        """The job begins with the first one's model."""
        first = self.script("first", *arguments)
        wait_for("the job's state", lambda: self.server.phase() == "PHASE_RUNNING")
        return [first, self.script("second", *arguments)]

    def await_saved(self) -> None:
        wait_for("a job", lambda: self.server.phase() == "PHASE_RUNNING")
        wait_for("a saved state", lambda: len(self.server.completions()) >= 4)

    def test_servers_are_killed_at_any_moment_and_all_samples_are_in_one_model(self) -> None:
        epochs, chance = 8, random.Random(7)
        scripts = self.start_in_turn("--epochs", str(epochs), "--pause", "0.02")
        wait_for("steps", lambda: len(self.records()) > 4)
        for kills in ([1], [0], [2], [1, 2], [0, 1], [2], [0]):
            time.sleep(chance.uniform(0, 0.5))  # Uploads and snapshots are under way, or not.
            self.restart(*kills)
            self.await_steps(3)
        for one in scripts:
            self.assertEqual(one.wait(), 0, one.log())
        results = self.results("first", "second")
        self.check_same(results)
        self.check_samples(epochs)
        # A push that a server's death has caught may be part of a later step than its worker says: no redone() here.
        steps = self.records()
        self.assertEqual(sorted(steps), list(range(len(steps))))

    def test_workers_and_servers_are_killed_and_all_end_with_one_model(self) -> None:
        epochs, chance = 8, random.Random(11)
        names = ("first", "second", "third")
        scripts = {name: self.script(name, "--epochs", str(epochs), "--pause", "0.02") for name in names}
        wait_for("steps", lambda: len(self.records()) > 4)
        for victim, kills in (("second", [1]), ("first", [0]), ("third", [2]), ("first", [1, 2])):
            scripts[victim].kill()
            scripts[victim] = self.script(victim, "--epochs", str(epochs), "--pause", "0.02")
            time.sleep(chance.uniform(0, 2))  # The newcomer waits for the state, or takes it, or has it.
            self.restart(*kills)
            self.await_steps(3)
        for one in scripts.values():
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results(*names))
        self.check_samples(epochs)

    def test_where_all_workers_die_with_a_server_training_goes_on_from_one_saved_state(self) -> None:
        for round_number, kills in enumerate(([1], [0], [0, 2])):
            scripts = [self.script(f"{name}{round_number}", "--epochs", "4", "--pause", "0.02") for name in ("a", "b")]
            self.await_steps(4)
            for one in scripts:
                one.kill()
            self.restart(*kills)
        again = [self.script(name, "--epochs", "4") for name in ("third", "fourth")]
        for one in again:
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results("third", "fourth"))
        self.check_samples(4)


    def lose_newest_state(self, number: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """That server is killed while it has a state that no snapshot has, and the others have it, too."""
        self.await_saved()
        failed = self.server.log().count("snapshot (state) failed")
        self.point_to("/dev/null")
        wait_for("a state that cannot be saved", lambda: self.server.log().count("snapshot (state) failed") > failed)
        meanwhile()
        self.servers[number].kill()
        self.point_to("real")
        went_back = self.server.log().count("all go back to the saved one")
        self.servers[number].start()
        wait_for("the saved state", lambda: self.server.log().count("all go back to the saved one") > went_back)

    def test_where_one_server_lost_the_newest_state_all_have_the_saved_one_until_the_next(self) -> None:
        scripts = self.start_in_turn("--epochs", "6", "--pause", "0.02")
        for number in (1, 2):
            self.lose_newest_state(number)
            self.await_steps(3)
        scripts.append(self.script("third", "--epochs", "6", "--pause", "0.02"))
        for one in scripts:
            self.assertEqual(one.wait(), 0, one.log())
        results = self.results("first", "second", "third")
        self.check_same(results)
        self.check_samples(6)
        self.check_redone(results[0])

    def test_where_one_server_lost_the_newest_state_and_all_workers_died_the_saved_one_is_gone_on_from(self) -> None:
        scripts = [self.script(name, "--epochs", "4", "--pause", "0.02") for name in ("first", "second")]

        def kill() -> None:
            for one in scripts:
                one.kill()
        self.lose_newest_state(1, kill)
        again = [self.script(name, "--epochs", "4") for name in ("third", "fourth")]
        for one in again:
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results("third", "fourth"))
        self.check_samples(4)

    def test_after_a_lost_disk_workers_begin_again_with_the_snapshot_that_all_go_back_to(self) -> None:
        first = self.script("first", "--epochs", "4", "--pause", "0.1")
        self.await_saved()
        self.await_steps(1)
        self.servers[1].kill()
        shutil.rmtree(self.servers[1].data)
        self.servers[1].data.mkdir()
        self.servers[1].start()
        self.assertNotEqual(first.wait(), 0)
        self.assertIn("start the worker again", first.log())
        again = [self.script(name, "--epochs", "4") for name in ("third", "fourth")]
        for one in again:
            self.assertEqual(one.wait(), 0, one.log())
        self.check_same(self.results("third", "fourth"))
        self.check_samples(4)


if __name__ == "__main__":
    unittest.main()
