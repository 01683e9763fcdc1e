"""Adasum, sets by label and host, and meetings, with a real server and members in threads."""

import contextlib
import io
import itertools
import os
import pathlib
import tempfile
import threading
import types
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import recon
from recon import _places, _ranks, adasum, collective
from recon.meeting import Meeting
from jobs import Server, wait_for

BINARIES = os.environ["RECON_TEST_BIN"]
PATIENCE = 30.0  # A busy machine is no dead member.


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    of_a = 1 - (a @ b) / (2 * (a @ a)) if a.any() else 1.0
    of_b = 1 - (a @ b) / (2 * (b @ b)) if b.any() else 1.0
    return of_a * a + of_b * b


def reference(gradients: list[np.ndarray]) -> np.ndarray:
    """Of ranks in their order: the first power of two, and the others."""
    if len(gradients) == 1:
        return gradients[0].astype(np.float64)
    half = 1
    while 2 * half < len(gradients):
        half *= 2
    return pair(reference(gradients[:half]), reference(gradients[half:]))


class Sets(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(BINARIES)
        cls.addClassCleanup(cls.server.__exit__)

    def together(self, name: str, size: int, work) -> list:
        def member(rank: int) -> object:
            with collective.Group(name, server=self.server.address, rank=rank, size=size, member=f"w{rank}",
                                  patience=PATIENCE) as group:
                result = work(group)
                group.barrier()
                return result
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(member, range(size)))

    def test_adasum_is_that_of_the_paper(self) -> None:
        random = np.random.default_rng(5)
        for size in (1, 2, 3, 4, 5):
            for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 5e-3)):
                common = random.normal(size=(7, 13))
                parts = [(common + random.normal(size=(7, 13))).astype(dtype) for _ in range(size)]
                expected = reference([part.reshape(-1) for part in parts]).reshape(7, 13)
                results = self.together(f"a{size}{np.dtype(dtype)}", size,
                                        lambda group: group.all_reduce(parts[group.rank], "adasum"))
                for result in results:
                    self.assertEqual(result.dtype, dtype)
                    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
                    np.testing.assert_array_equal(result, results[0])

    def test_adasum_adds_what_is_orthogonal_and_means_what_is_equal_for_each_tensor(self) -> None:
        def work(group: collective.Group) -> list:
            own = np.zeros(4, np.float32)
            own[group.rank] = 2.0
            same, none = np.arange(1, 6, dtype=np.float32), np.zeros((2, 0, 3), np.float32)
            into = same.copy()
            self.assertIs(group.all_reduce(into, "adasum", out=into), into)
            return [*adasum.all_reduce_many(group, [own, same, none, np.zeros(3, np.float32)]), into]
        for orthogonal, equal, none, zeros, into in self.together("shapes", 4, work):
            np.testing.assert_allclose(orthogonal, np.full(4, 2.0))
            np.testing.assert_allclose(equal, np.arange(1, 6), rtol=1e-6)
            np.testing.assert_allclose(into, np.arange(1, 6), rtol=1e-6)
            self.assertEqual(none.shape, (2, 0, 3))
            self.assertFalse(zeros.any())

    def test_wrong_use_of_adasum_is_named(self) -> None:
        def work(group: collective.Group) -> None:
            with self.assertRaisesRegex(ValueError, "adasum of int64: only of floating point"):
                group.all_reduce(np.arange(3), "adasum")
            with self.assertRaisesRegex(ValueError, "neither wire nor async_op"):
                group.all_reduce(np.ones(3), "adasum", wire="fp16")
            with self.assertRaisesRegex(ValueError, r"out is float64\[4\], the result is float64\[3\]"):
                group.all_reduce(np.ones(3), "adasum", out=np.ones(4))
        self.together("wrong", 2, work)

    def test_who_waits_for_calls_of_different_names_says_both_sides(self) -> None:
        os.environ["RECON_STALL_SECONDS"] = "0.3"
        self.addCleanup(os.environ.pop, "RECON_STALL_SECONDS")
        both = threading.Barrier(2)

        def member(rank: int) -> Exception:
            with collective.Group("names", server=self.server.address, rank=rank, size=2, member=f"w{rank}",
                                  patience=PATIENCE, by_name=True) as group:
                group.all_reduce(np.ones(1))
                handle = group.all_reduce(np.ones(1), name="ab"[rank], async_op=True)
                both.wait()
                try:
                    return handle.wait(2.0 if rank == 0 else None)
                except recon.ReconError as error:
                    return error
        said = io.StringIO()
        with contextlib.redirect_stderr(said), ThreadPoolExecutor(2) as pool:
            errors = list(pool.map(member, range(2)))
        self.assertIsInstance(errors[0], collective.CallTimeout)
        self.assertIsInstance(errors[1], collective.MemberLost)
        for text in (str(errors[0]), said.getvalue()):
            self.assertRegex(text, "all_reduce 'a' sum float64.1., waits for w1")
            self.assertRegex(text, "all_reduce 'b' sum float64.1., waits for w0")
        self.assertIn("recon: rank 1 of set 'names' has waited for 0.3 s", said.getvalue())

    def test_members_with_one_label_make_a_set(self) -> None:
        labels = ["rack a", "", "rack a", "ü\n", ""]

        def work(group: collective.Group) -> tuple:
            self.assertEqual(group.tell(labels[group.rank]), labels)
            with group.split(labels[group.rank]) as part, group.split(labels[group.rank]) as again:
                again.barrier()
                return part.rank, part.size, float(part.all_reduce(np.array([float(group.rank)]))[0])
        self.assertEqual(self.together("labels", 5, work),
                         [(0, 2, 2.0), (0, 2, 5.0), (1, 2, 2.0), (0, 1, 3.0), (1, 2, 5.0)])

    def test_sets_by_host_and_rack_take_the_environments_labels(self) -> None:
        host, rack = os.environ.pop("RECON_HOST", None), os.environ.pop("RECON_RACK", None)
        self.addCleanup(lambda: os.environ.update({name: value for name, value in (
            ("RECON_HOST", host), ("RECON_RACK", rack)) if value is not None}))
        with self.assertRaisesRegex(ValueError, "RECON_RACK does not say"):
            collective.rack_label()
        os.environ["RECON_RACK"] = "r7"
        self.addCleanup(os.environ.pop, "RECON_RACK", None)

        def work(group: collective.Group) -> tuple:
            with group.by_host() as here, group.by_rack() as rack_set:
                return here.size, rack_set.size, "r7" in rack_set.name
        self.assertEqual(self.together("hosts", 2, work), [(2, 2, True)] * 2)
        os.environ["RECON_HOST"] = "h1"
        self.addCleanup(os.environ.pop, "RECON_HOST", None)
        self.assertEqual(collective.host_label(), "h1")

    def test_sets_by_numa_node_and_switch_take_what_linux_says(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        root = pathlib.Path(directory.name)
        nodes, may_use = root / "devices/system/node", os.sched_getaffinity(0)
        mine = ",".join(map(str, sorted(may_use)))
        for node, cpus in (("node0", f"{max(may_use) + 1}-{max(may_use) + 9}"), ("node1", mine)):
            (nodes / node).mkdir(parents=True)
            (nodes / node / "cpulist").write_text(f"{cpus}\n")
        (root / "bus/pci/devices").mkdir(parents=True)
        for address, ports, node in (("0000:65:00.0", "0000:64:00.0/0000:65:01.0", 1), ("0000:66:00.0", "0000:64:00.0/0000:65:02.0", 1),
                                     ("0000:b1:00.0", "0000:b0:02.0", -1)):
            device = root / "devices/pci0000:64" / ports / address
            device.mkdir(parents=True)
            (device / "numa_node").write_text(f"{node}\n")
            (root / "bus/pci/devices" / address).symlink_to(device)
        with unittest.mock.patch.object(_places, "SYSTEM", root), unittest.mock.patch.dict(os.environ, RECON_HOST="h"):
            self.assertEqual(collective.numa_label(), "h/node 1")
            self.assertEqual([collective.numa_label(gpu) for gpu in ("0000:65:00.0", "0000:B1:00.0")], ["h/node 1", "h/node 0"])
            self.assertEqual([collective.switch_label(gpu) for gpu in ("0000:65:00.0", "0000:66:00.0", "0000:b1:00.0")],
                             ["h/port 0000:64:00.0", "h/port 0000:64:00.0", "h/port 0000:b0:02.0"])
            self.assertEqual(self.together("numa", 2, lambda group: [one.size for one in (
                group.by_numa(), group.by_switch(f"0000:{('65', 'b1')[group.rank]}:00.0"))]), [[2, 1], [2, 1]])
            for wrong in ("65:00.0", "0000:67:00.0", "../../x"):
                with self.assertRaisesRegex(ValueError, "no PCI device has the address"):
                    collective.numa_label(wrong)
            (nodes / "node0/cpulist").write_text(mine)
            with self.assertRaisesRegex(ValueError, "NUMA nodes 0, 1: bind it"):
                collective.numa_label()
            with self.assertRaisesRegex(ValueError, "there is no GPU"):
                collective.switch_label()

    def test_sets_that_settings_name_begin_by_their_names(self) -> None:
        with unittest.mock.patch.dict(os.environ, RECON_SETS="late=1,2 early=2,0-1 alone=3"):
            def work(rank: int) -> dict[str, tuple]:
                groups = collective.predefined(rank, server=self.server.address, patience=PATIENCE)
                results = {name: (group.rank, group.size, float(group.all_reduce(np.array([rank], np.float32))[0]))
                           for name, group in groups.items()}
                for group in groups.values():
                    group.barrier()
                    group.close()
                return results
            with ThreadPoolExecutor(5) as pool:
                results = list(pool.map(work, range(5)))
        self.assertEqual(results, [{"early": (1, 3, 3.0)}, {"early": (2, 3, 3.0), "late": (0, 2, 3.0)},
                                   {"early": (0, 3, 3.0), "late": (1, 2, 3.0)}, {"alone": (0, 1, 3.0)}, {}])
        for text, error in (("a", "expected NAME=RANKS"), ("=1", "expected NAME=RANKS"), ("a=", "expected NAME=RANKS"),
                            ("a=x", "expected numbers and ranges"), ("a=3-1", "expected numbers and ranges"),
                            ("a=1 a=2", "a second time"), ("a=1,0-2", "a second time")):
            with unittest.mock.patch.dict(os.environ, RECON_SETS=text), self.assertRaisesRegex(ValueError, error):
                collective.predefined(0, server=self.server.address)

    def test_who_waits_for_a_set_to_begin_says_for_whom_again_and_again(self) -> None:
        def says(address: str) -> str:
            with contextlib.redirect_stderr(io.StringIO()) as told, self.assertRaises(collective.CallTimeout):
                collective.Group("slow", server=address, rank=0, size=2, member="w0", timeout=2.0, patience=PATIENCE)
            return told.getvalue()
        with unittest.mock.patch.object(collective, "_BEGIN_TOLD_SECONDS", 0.1):
            line = r"recon: set 'slow' has not begun for \d s: "
            self.assertRegex(says("127.0.0.1:1"), rf"^({line}the server at 127.0.0.1:1 does not answer: .*\n){{2,5}}$")
            self.assertRegex(says(self.server.address), rf"^({line}.*\n){{2,5}}$")

    def test_a_split_ends_when_a_member_dies_meanwhile(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(collective.Group, "dying", server=self.server.address, rank=0, size=2,
                                  patience=PATIENCE)
            other = collective.Group("dying", server=self.server.address, rank=1, size=2, patience=PATIENCE)
            group = joining.result()
            splitting = pool.submit(group.split, "all")
            other.tell("all")
            wait_for("the part", lambda: any(one["name"].startswith("dying/")
                                             for one in collective.sets(self.server.address)))
            self.assertEqual(group.lost, [])
            other.close()
            with self.assertRaisesRegex(collective.SetChanged, "not begun, as others have gone"):
                splitting.result()
            self.assertEqual(group.lost, [1])
            group.close()

    def test_sizes_from_before_a_loss_are_never_taken_for_those_after_it(self) -> None:
        calls = {"tell": lambda group: group.tell("x"),
                 "gather": lambda group: group.all_gather(np.ones(2)),
                 "known": lambda group: group.all_gather(np.ones(2), sizes=[2] * 3),
                 "scatter": lambda group: group.reduce_scatter(np.ones(6)),
                 "all to all": lambda group: group.all_to_all([np.ones(1)] * 3),
                 "root": lambda group: group.broadcast(np.ones(1), 1),
                 "adasum": lambda group: group.all_reduce(np.ones(3), "adasum")}

        def member(rank: int) -> None:
            for name, call in calls.items():
                with collective.Group(f"before {name}", server=self.server.address, rank=rank, size=3,
                                      member=f"w{rank}", on_loss="shrink", patience=PATIENCE) as group:
                    group.barrier()
                    if rank == 1:
                        continue
                    members = 3
                    while members == 3:  # The set has shrunk, and this process has not said that it knows.
                        handle = group.all_reduce(np.ones(1), async_op=True)
                        handle.wait()
                        members = handle.members
                    with self.assertRaisesRegex(collective.SetChanged, "set 'before", msg=name):
                        call(group)
                    group.barrier()
                    self.assertEqual(group.update(), (rank, 2))
                    self.assertEqual(group.tell(str(rank)), ["0", "2"])
                    group.barrier()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(member, range(3)))

    def test_a_rank_is_the_launchers_unless_recon_run_has_started_the_process(self) -> None:
        with unittest.mock.patch.dict(os.environ, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}):
            self.assertEqual(_ranks.numbers_of_launcher(), {"rank": 0, "size": 1})
            os.environ["RECON_MIN_SIZE"] = "4"
            self.assertEqual(_ranks.numbers_of_launcher(), {"rank": None, "size": None})
            os.environ.update(RECON_RANK="2", RECON_SIZE="4")
            self.assertEqual(_ranks.numbers_of_launcher(), {"rank": 2, "size": 4})

    def test_a_set_of_all_begins_anew_after_a_loss(self) -> None:
        with unittest.mock.patch.dict(os.environ, {"RECON_SERVER": self.server.address, "RECON_MIN_SIZE": "2"}), \
                ThreadPoolExecutor(2) as pool:
            # Members of one process need names of their own.
            with unittest.mock.patch("socket.gethostname", side_effect=itertools.count().__next__):
                first, second, third = (_ranks.Everybody("all") for _ in range(3))
                groups = list(pool.map(lambda one: one.join(timeout=60.0), (first, second)))
                second.leave()
                wait_for("the loss", lambda: groups[0].lost)
                self.assertIs(first.join(), groups[0])  # Until it is told to begin anew.
                first.leave()
                self.assertFalse(groups[0].alive)
                again = list(pool.map(lambda one: one.join(timeout=60.0), (first, third)))
                self.assertEqual([group.size for group in again], [2, 2])
                third.leave()
                first.leave()
                # A meeting that does not come about is left, too.
                with self.assertRaises(recon.JobLost):
                    first.join(timeout=0.5)
                self.assertIsNone(first._meeting)

    def test_a_set_that_cannot_begin_is_not_waited_for_when_the_server_was_another_one(self) -> None:
        with Server(BINARIES) as server:
            hall = collective.Group("hall", server=server.address, patience=PATIENCE)
            self.assertTrue(hall.alive)
            self.assertFalse(hall.disturbed())
            server.kill()
            server.start()
            wait_for("the loss", lambda: not hall.alive)
            with self.assertRaisesRegex(collective.SetChanged, "not begun"):
                collective.Group("part", server=server.address, rank=0, size=2, interrupted=hall.disturbed)
            hall.close()

    def test_who_comes_disturbs_nobody_until_the_next_meeting(self) -> None:
        first = Meeting("m", server=self.server.address, member="a", patience=PATIENCE)
        work = first.meet()
        self.assertEqual((work.rank, work.size, first.changed), (0, 1, False))
        with work.split("") as part:  # However long others have been waited for.
            self.assertEqual((work.timeout, part.timeout), (600.0, 600.0))
        second = Meeting("m", server=self.server.address, member="b", patience=PATIENCE)
        wait_for("the newcomer", lambda: first.changed)
        self.assertEqual(work.all_reduce(np.ones(1))[0], 1.0)
        work.close()
        with ThreadPoolExecutor(2) as pool:
            groups = list(pool.map(Meeting.meet, (first, second)))
            self.assertEqual([(group.rank, group.size) for group in groups], [(0, 2), (1, 2)])
            self.assertEqual((first.numbers, second.number), ([1, 0], 2))
            first.close()
            groups[0].close()
            wait_for("the loss", lambda: second.changed)
            with self.assertRaises(recon.ReconError):
                groups[1].barrier()
            groups[1].close()
            alone = second.meet()
            self.assertEqual((alone.rank, alone.size, second.numbers), (0, 1, [2]))
            alone.close()
            second.close()

    def test_who_waits_for_others_at_a_first_meeting_outlives_the_server(self) -> None:
        with Server(BINARIES) as server, ThreadPoolExecutor(2) as pool:
            def come(member: str) -> tuple[int, int]:
                meeting = Meeting("o", server=server.address, min_size=2, member=member, patience=PATIENCE, timeout=60.0)
                with meeting.meet() as group:
                    group.barrier()
                    meeting.close()
                    return group.rank, group.size

            def waiting() -> list:
                return [one["waiting"] for one in collective.sets(server.address) if one["name"] == "o/meeting"]
            first = pool.submit(come, "a")
            wait_for("the first one", lambda: waiting() == [[(0, "a")]])
            server.kill()
            server.start()
            wait_for("the first one again", lambda: first.done() or waiting() == [[(0, "a")]])
            self.assertEqual(pool.submit(come, "b").result(), (1, 2))
            self.assertEqual(first.result(), (0, 2))

    def test_a_server_that_refuses_at_once_is_asked_ever_more_rarely_until_the_end(self) -> None:
        now, asked = 0.0, []

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        def refuse(*_: object, **__: object) -> None:
            asked.append(now)
            self.assertLess(len(asked), 30)
            raise recon.JobLost("unavailable")
        clock = types.SimpleNamespace(monotonic=lambda: now, sleep=sleep)
        with unittest.mock.patch("recon.meeting.Group", refuse), unittest.mock.patch("recon.meeting.time", clock), \
                self.assertRaisesRegex(recon.JobLost, "unavailable"):
            Meeting("u", timeout=10.0)
        self.assertEqual(asked[:3] + asked[-1:], [0.0, 0.02, 0.06, 10.0])

    def test_a_meeting_of_fixed_ranks_waits_for_who_takes_the_lost_one(self) -> None:
        def meeting(rank: int, timeout: float = 600.0) -> Meeting:
            return Meeting("f", server=self.server.address, rank=rank, size=2, member=f"w{rank}", patience=PATIENCE,
                           timeout=timeout)
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(meeting, range(2)))
            groups = list(pool.map(Meeting.meet, both))
            groups[1].close()
            both[1].close()
            wait_for("the loss", lambda: both[0].changed)
            groups[0].close()
            again = pool.submit(both[0].meet, 0)
            replacement = meeting(1)
            group = replacement.meet(7)
            self.assertEqual((group.rank, again.result().rank), (1, 0))
            self.assertEqual((replacement.numbers, replacement.worths, both[0].senior), ([1, 0], [0, 7], 1))
            group.close()
            replacement.close()
            wait_for("the loss", lambda: both[0].changed)
            again.result().close()
            both[0].timeout = 0.5
            with self.assertRaisesRegex(collective.CallTimeout, "no meeting of 'f' within 0.5 s"):
                both[0].meet()
            both[0].close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
