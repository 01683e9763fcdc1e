"""recon.collective with a real server: values against NumPy's, wrong use, and members that die."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import recon
from recon import collective
from jobs import HERE, Server, wait_for

BINARIES = os.environ["RECON_TEST_BIN"]
PATIENCE = 30.0  # A busy machine is no dead member.
RANKS = 3


def together(server: Server, work: Callable[[collective.Group], object], size: int = RANKS, name: str = "s",
             **options: object) -> list:
    """Runs `work` as each member of a set, in threads; what each returns, or the exception it raised."""
    def member(rank: int) -> object:
        try:
            with collective.Group(name, server=server.address, rank=rank, size=size, member=f"w{rank}",
                                  patience=PATIENCE, **options) as group:
                result = work(group)
                if not isinstance(result, Exception):
                    group.barrier()
                return result
        except recon.ReconError as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


def values(dtype: str, rank: int, shape: tuple) -> np.ndarray:
    random = np.random.default_rng(rank)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return random.integers(0, 7, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(BINARIES)
        cls.addClassCleanup(cls.server.__exit__)

    def check(self, results: list) -> list:
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def test_reductions_are_numpys(self) -> None:
        folds = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
        for dtype in ("float32", "float16", "float64", "int32", "int64", "uint8", "bool"):
            for shape in ((0,), (1,), (7, 3), (300, 401)):
                parts = [values(dtype, rank, shape) for rank in range(RANKS)]
                results = self.check(together(self.server, lambda group: [
                    group.all_reduce(parts[group.rank], op) for op in folds]))
                wide = [part.astype("float32") if dtype == "float16" else part for part in parts]
                for index, fold in enumerate(folds.values()):
                    expected = fold(fold(wide[0], wide[1]), wide[2]).astype(dtype)
                    for result in results:
                        with self.subTest(dtype=dtype, shape=shape, fold=fold.__name__):
                            np.testing.assert_array_equal(result[index], expected)

    def test_means_and_formats_on_the_way(self) -> None:
        parts = [values("float32", rank, (1000, 301)) for rank in range(RANKS)]
        results = self.check(together(self.server, lambda group: [
            *(group.all_reduce(parts[group.rank], "mean", wire=wire) for wire in ("", "fp16", "bf16", "int8")),
            group.reduce_scatter(parts[group.rank], "mean", wire="int8")]))
        total = (parts[0] + parts[1]) + parts[2]
        for rank, result in enumerate(results):
            np.testing.assert_array_equal(result[0], total / np.float32(3))
            np.testing.assert_allclose(result[1], total / 3, atol=4e-3)
            np.testing.assert_allclose(result[2], total / 3, atol=3e-2)
            for wire in (1, 3):
                np.testing.assert_array_equal(result[wire], results[0][wire])
            # A step is the largest of 256 values / 127: 4 or so at most.
            np.testing.assert_allclose(result[3], total / 3, atol=0.1)
            self.assertLess(abs(float((result[3] - total / 3).mean())), 1e-3)
            np.testing.assert_allclose(result[4], np.array_split(total / 3, RANKS)[rank], atol=0.1)

    def test_the_largest_values_travel_and_others_are_kept_for_the_next_sum(self) -> None:
        # What a member has sent until now, and what it has kept, is what it has given.
        parts = [np.random.default_rng(rank).normal(size=(6, 50, 7)).astype(np.float32) for rank in range(3)]

        def work(group: collective.Group) -> list:
            results = [group.all_reduce(part, wire="topk:0.1", name="g") for part in parts[group.rank]]
            kept = group._largest_sums._kept["g"]
            into = parts[group.rank][0].copy()
            handle = group.all_reduce(into, "mean", out=into, wire="topk:1", name="all", async_op=True)
            self.assertIs(handle.wait(), into)
            self.assertEqual(handle.members, 3)
            none = group.all_reduce(np.zeros((0, 2)), wire="topk:0.5", name="none")
            self.assertEqual(none.shape, (0, 2))
            odd = np.array([np.nan, 1e9, 0.0, 0.0], np.float64) if group.rank else np.zeros(4)
            nan = group.all_reduce(odd, wire="topk:0.25", name="nan")
            self.assertTrue(np.isnan(nan[0]) and not nan[1:].any())
            return [results, kept, into]
        whole = sum(part.astype(np.float64) for part in parts)
        done = self.check(together(self.server, work, 3, "largest"))
        for results, _, into in done:
            for result, first in zip(results, done[0][0]):
                np.testing.assert_array_equal(result, first)
                self.assertLessEqual(np.count_nonzero(result), 3 * 35)
            np.testing.assert_allclose(into, whole[0] / 3, rtol=1e-5, atol=1e-6)
        kept = sum(kept.astype(np.float64) for _, kept, _ in done).reshape(50, 7)
        np.testing.assert_allclose(sum(done[0][0]) + kept, whole.sum(0), rtol=1e-4, atol=1e-4)

        def wrong(group: collective.Group) -> None:
            ones = np.ones(4, np.float32)
            for wire in ("topk:", "topk:0", "topk:1.5", "topk:nan", "topk:x"):
                with self.assertRaisesRegex(ValueError, "the fraction that is sent"):
                    group.all_reduce(ones, wire=wire, name="g")
            with self.assertRaisesRegex(ValueError, "needs a name"):
                group.all_reduce(ones, wire="topk:0.5")
            with self.assertRaisesRegex(ValueError, "not for a max of float32"):
                group.all_reduce(ones, "max", wire="topk:0.5", name="g")
            with self.assertRaisesRegex(ValueError, "not for a sum of int32"):
                group.all_reduce(ones.astype(np.int32), wire="topk:0.5", name="g")
        self.check(together(self.server, wrong, 1, "wrong largest"))

    def test_what_a_failed_sum_has_not_sent_is_of_the_next(self) -> None:
        def work(group: collective.Group) -> object:
            group.barrier()
            if group.rank == 1:
                group.close()
                return recon.ReconError("is gone")
            with self.assertRaises(recon.ReconError):
                group.all_reduce(np.arange(4.0), wire="topk:0.5", name="g")
            np.testing.assert_array_equal(group._largest_sums._kept["g"], np.arange(4.0))
            return recon.ReconError("there is nobody left for a barrier")
        together(self.server, work, 2, "failing")

    def test_arrays_that_are_not_contiguous_and_in_place(self) -> None:
        def work(group: collective.Group) -> tuple:
            whole = np.arange(60, dtype=np.float32).reshape(6, 10) * (group.rank + 1)
            into = np.zeros((6, 10), np.float32)
            group.all_reduce(whole[:, ::2], out=into[:, ::2])
            group.all_reduce(whole, out=whole)
            return into, whole
        for into, whole in self.check(together(self.server, work)):
            expected = np.arange(60, dtype=np.float32).reshape(6, 10) * 6
            np.testing.assert_array_equal(whole, expected)
            np.testing.assert_array_equal(into[:, ::2], expected[:, ::2])
            self.assertFalse(into[:, 1::2].any())

    def test_gathers_and_scatters_of_uneven_sizes(self) -> None:
        parts = [values("int64", rank, (rows, 3)) for rank, rows in enumerate((4, 0, 100_000))]
        whole = np.concatenate(parts)

        def work(group: collective.Group) -> tuple:
            out = np.empty((2, 3), np.int64)
            return (group.all_gather(parts[group.rank]), group.gather(parts[group.rank], 1),
                    group.reduce_scatter(whole, "sum"), group.reduce_scatter(whole, "max", sizes=[0, len(whole), 0]),
                    group.scatter(whole[:6], 2, out=out), group.broadcast(parts[2] * (group.rank + 1), 1),
                    group.reduce(parts[2], 0), group.all_reduce(np.float32(2)))
        results = self.check(together(self.server, work))
        pieces = np.array_split(whole * 3, RANKS)
        for rank, (gathered, at_root, part, second, scattered, sent, reduced, one) in enumerate(results):
            np.testing.assert_array_equal(gathered, whole)
            self.assertEqual(at_root is None, rank != 1)
            np.testing.assert_array_equal(part, pieces[rank])
            self.assertEqual(len(second), len(whole) if rank == 1 else 0)
            np.testing.assert_array_equal(scattered, whole[2 * rank:2 * rank + 2])
            np.testing.assert_array_equal(sent, parts[2] * 2)
            self.assertEqual(one, 6)
            if rank == 0:
                np.testing.assert_array_equal(reduced, parts[2] * 3)
        np.testing.assert_array_equal(results[1][1], whole)

    def test_all_to_all_and_messages(self) -> None:
        def work(group: collective.Group) -> tuple:
            mine = [np.full((group.rank + to, 2), 10 * group.rank + to, np.float32) for to in range(group.size)]
            received = group.all_to_all(mine)
            out = np.empty(5, np.int32)
            after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            sent = [group.send(np.full(5, group.rank, np.int32), after, tag=tag, async_op=True) for tag in (7, 8)]
            group.recv(out, before, tag=8)
            group.recv(out, before, tag=7)
            for handle in sent:
                handle.wait()
            return received, out
        for rank, (received, out) in enumerate(self.check(together(self.server, work))):
            for source, array in enumerate(received):
                np.testing.assert_array_equal(array, np.full((source + rank, 2), 10 * source + rank))
            np.testing.assert_array_equal(out, np.full(5, (rank - 1) % RANKS))

    def test_many_calls_at_once_in_several_sets(self) -> None:
        def work(group: collective.Group) -> float:
            other = collective.Group("other", server=self.server.address, rank=group.size - 1 - group.rank,
                                     size=group.size, patience=PATIENCE)
            with other:
                arrays = [np.full(50_000, group.rank, np.float32) for _ in range(40)]
                handles = [(group if i % 2 else other).all_reduce(array, out=array, async_op=True)
                           for i, array in enumerate(arrays)]
                results = [handle.wait() for handle in reversed(handles)]
                other.barrier()
                return sum(float(result[-1]) for result in results)
        self.assertEqual(self.check(together(self.server, work)), [40 * 3.0] * 3)

    def test_elastic_members_are_numbered_anew_and_told(self) -> None:
        first = collective.Group("elastic", server=self.server.address, member="a", patience=PATIENCE)
        self.assertEqual((first.rank, first.size), (0, 1))
        second = collective.Group("elastic", server=self.server.address, member="b", patience=PATIENCE)
        wait_for("the change", lambda: first.changed)
        with self.assertRaisesRegex(collective.SetChanged, "'b' came as rank 1"):
            first.all_reduce(np.ones(3))
        self.assertEqual(first.update(), (0, 2))
        handle = first.all_reduce(np.ones(3), async_op=True)
        np.testing.assert_array_equal(second.all_reduce(np.ones(3)), np.full(3, 2))
        np.testing.assert_array_equal(handle.wait(), np.full(3, 2))
        first.close()
        wait_for("the change", lambda: second.changed)
        with self.assertRaisesRegex(collective.SetChanged, r"'a' \(rank 0\) went: it left"):
            second.barrier()
        self.assertEqual(second.update(), (0, 1))
        second.close()

    def test_names_and_reasons_of_others_are_plain_text(self) -> None:
        for names in ({"name": "s\x1b[31m"}, {"name": "s", "member": "w\u202e0"}):
            with self.assertRaisesRegex(recon.Refused, r'has \\(x1b|u202e) as byte 2: use characters'):
                collective.Group(**names, server=self.server.address, rank=0, size=2, timeout=30.0)

        def work(group: collective.Group) -> object:
            if group.rank == 1:
                group._core.leave("bye \x1b[31m\u202e")
                return recon.ReconError("has left")
            return group.barrier()
        told, _ = together(self.server, work, 2, "plain")
        self.assertIn("bye \\x1b[31m\\u202e", str(told))

    def test_wrong_use_is_named(self) -> None:
        told = threading.Barrier(3)  # Nobody leaves before all have been told: that would be another error.

        def work(group: collective.Group) -> object:
            with self.assertRaisesRegex(recon.Refused, "a mean of int32"):
                group.all_reduce(np.ones(3, np.int32), "mean")
            with self.assertRaisesRegex(recon.Refused, 'unknown operation "median"'):
                group.all_reduce(np.ones(3), "median")
            with self.assertRaisesRegex(recon.Refused, "complex128"):
                group.all_reduce(np.ones(3, complex))
            with self.assertRaisesRegex(recon.Refused, "rank 5 is not among the set's 3 members"):
                group.broadcast(np.ones(3), 5)
            with self.assertRaisesRegex(ValueError, r"out is float64\[4\], the result is float64\[3\]"):
                group.all_reduce(np.ones(3), out=np.ones(4))
            try:
                return group.all_reduce(np.ones(3 + group.rank // 2))
            finally:
                told.wait(60)
        for result in together(self.server, work):
            self.assertIsInstance(result, recon.Refused)
            self.assertRegex(str(result), r"rank \d calls all_reduce sum float64\[3\]")
            self.assertRegex(str(result), r"rank 2 calls all_reduce sum float64\[4\]")
        with self.assertRaisesRegex(recon.Refused, "it is a set of 2 members"):
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(collective.Group, "w", server=self.server.address, rank=0, size=2, timeout=3.0)
                wait_for("the set", lambda: any(s["name"] == "w" for s in collective.sets(self.server.address)))
                try:
                    collective.Group("w", server=self.server.address, rank=1, size=3)
                finally:
                    self.assertRaisesRegex(collective.CallTimeout, "waits for 2 members, there are 1", waiting.result)

    def test_a_call_that_takes_too_long_says_whom_it_waits_for(self) -> None:
        ready = threading.Event()

        def work(group: collective.Group) -> object:
            if group.rank == 1:
                ready.wait()
                return group.all_reduce(np.ones(2), name="late")
            handle = group.all_reduce(np.ones(2), name="late", async_op=True)
            try:
                return handle.wait(0.5 if group.rank == 0 else None)
            finally:
                ready.set()
        results = together(self.server, work)
        self.assertIsInstance(results[0], collective.CallTimeout)
        self.assertRegex(str(results[0]), "all_reduce 'late' sum float64.2., waits for w1")
        self.assertRegex(str(results[2]), "w0")

    def test_the_list_of_sets_says_who_is_lost_and_names_no_one_else(self) -> None:
        def said() -> dict:
            return next(one for one in collective.sets(self.server.address) if one["name"] == "listed")

        with ThreadPoolExecutor(2) as pool:
            members = list(pool.map(lambda rank: collective.Group(
                "listed", server=self.server.address, rank=rank, size=2, member=f"w{rank}", patience=PATIENCE), range(2)))
        with members[1]:
            self.assertEqual((said()["members"], said()["lost"]), ([(0, "w0"), (1, "w1")], []))
            members[0].close()
            wait_for("the loss", lambda: members[1].lost == [0])
            self.assertEqual((said()["members"], said()["lost"]), ([(1, "w1")], [(0, "w0", "it left")]))
            shown = subprocess.run([f"{BINARIES}/reconctl", "sets", "--server", self.server.address], check=True, text=True,
                                   capture_output=True).stdout.splitlines()
            row = next(line.split() for line in shown if line.startswith("listed "))
            self.assertEqual(row, ["listed", "fixed", "1", "1", "0", "1", "0"])
            self.assertIn("listed: w1 (1)", shown)
            self.assertIn("  lost: w0 (0): it left", shown)
            # Who takes the rank is a member, in a new epoch that nobody is lost from.
            with collective.Group("listed", server=self.server.address, rank=0, size=2, member="again", patience=PATIENCE):
                self.assertEqual((said()["members"], said()["lost"]), ([(0, "again"), (1, "w1")], []))


class Revoked(unittest.TestCase):
    def test_a_server_whose_certificate_is_revoked_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            make_certs = str(HERE.parent.parent / "tools/make_certs.sh")
            subprocess.run([make_certs, folder, "127.0.0.1"], check=True, capture_output=True)
            files = {name: f"{folder}/{name}" for name in ("server.pem", "server.key", "worker.pem", "worker.key", "ca.pem", "crl.pem")}
            subprocess.run([make_certs, "--revoke", files["server.pem"], folder], check=True, capture_output=True)
            own = {"RECON_TLS_CERT": files["worker.pem"], "RECON_TLS_KEY": files["worker.key"], "RECON_TLS_CA": files["ca.pem"]}
            with Server(BINARIES, "--tls-cert", files["server.pem"], "--tls-key", files["server.key"],
                        "--tls-ca", files["ca.pem"]) as server, unittest.mock.patch.dict(os.environ, own):
                # Who has no list takes it.
                with collective.Group("s", server=server.address, rank=0, size=1) as group:
                    group.barrier()
                os.environ["RECON_TLS_CRL"] = files["crl.pem"]
                with self.assertRaisesRegex(recon.ReconError, "certificate is revoked"):
                    collective.sets(server.address)
                with self.assertRaisesRegex(collective.CallTimeout, "not begun within 1 s"):  # It would wait for another.
                    collective.Group("s", server=server.address, rank=0, size=1, timeout=1.0)


MEMBER = """
import sys
import numpy as np
from recon import collective
group = collective.Group("s", rank=int(sys.argv[1]), size=3, member="w" + sys.argv[1], on_loss=sys.argv[2], patience=2)
while True:
    handle = group.all_reduce(np.ones(100_000, np.float32), async_op=True)
    try:
        print(handle.wait()[0], handle.members, flush=True)
    except collective.MemberLost as error:
        sys.exit(str(error))
"""


class Deaths(unittest.TestCase):
    def run_and_lose(self, on_loss: str, how: signal.Signals) -> list[subprocess.Popen]:
        server = Server(BINARIES)
        self.addCleanup(server.__exit__)
        members = [subprocess.Popen([sys.executable, "-c", MEMBER, str(rank), on_loss], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, "RECON_SERVER": server.address}) for rank in range(3)]
        for member in members:
            self.addCleanup(member.communicate)
            self.addCleanup(member.kill)
        for member in members:
            self.assertEqual(member.stdout.readline(), "3.0 3\n")
        members[1].send_signal(how)
        return members

    def test_a_killed_member_ends_the_calls_of_others_with_its_name(self) -> None:
        members = self.run_and_lose("raise", signal.SIGKILL)
        for rank in (0, 2):
            self.assertIn("member 'w1' (rank 1) is lost", members[rank].communicate(timeout=60)[1])

    def test_a_stopped_member_is_lost_when_it_is_silent_for_too_long(self) -> None:
        members = self.run_and_lose("raise", signal.SIGSTOP)
        for rank in (0, 2):
            self.assertRegex(members[rank].communicate(timeout=60)[1], r"member 'w1' \(rank 1\) is lost: silent for 2")

    def test_a_set_that_shrinks_goes_on(self) -> None:
        members = self.run_and_lose("shrink", signal.SIGKILL)
        for rank in (0, 2):
            line = "3.0 3\n"
            while line == "3.0 3\n":
                line = members[rank].stdout.readline()
            self.assertEqual(line, "2.0 2\n")

    def test_control_c_ends_a_wait(self) -> None:
        with Server(BINARIES) as server:
            script = ("import os, signal, threading\nfrom recon import collective\n"
                      "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
                      "try:\n    collective.Group('s', rank=0, size=2)\n"
                      "except KeyboardInterrupt:\n    print('interrupted')\n")
            run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120,
                                 env={**os.environ, "RECON_SERVER": server.address})
            self.assertIn("interrupted", run.stdout, run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
