"""Whoever reaches the port of a server, and has no secret: some 200 attempts while a job trains, ranks of hvd and of Elastic
compute, and somebody reads the job's page and its metrics; the same against a job that `recon run` has started. Nothing is answered,
nothing runs, nobody is lost, and all end well."""

import json
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
import unittest

try:
    import torch._dynamo  # noqa: F401: so that ranks have it, and what an optimizer loads, too.
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

import recon
from recon import collective
from hostile import Payload
from jobs import HERE, Script, Server, WAIT_SECONDS, wait_for
from ranks import Rank, all_end_well
from stranger import Reader, call, free_port, garbage

BINARIES = os.environ["RECON_TEST_BIN"]
CONTROL = ("Register", "Heartbeat", "Acquire", "Complete", "Rejoin", "Leave", "Status", "History", "Completions", "Snapshot", "Drain",
           "SetPolicy", "Rollback")
FRAMES = "recon.Param/Exchange"
METHODS = [*(f"recon.Control/{name}" for name in CONTROL), "recon.Collective/Sets", "recon.Collective/Exchange", "recon.Trace/Record",
           "recon.Trace/Clock", "recon.Trace/Deliver", "recon.ShardServers/Serve", FRAMES]
ANSWER_SECONDS = 1.0  # Within which pages are answered; on a machine with more to do than it has cores, so many times that.
GIVE_UP_SECONDS = 30.0


class Launched(Server):
    """A job that `recon run` has started: two workers and their server."""

    def start(self) -> None:
        with open(self.root / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "recon", "run", "--workers", "2", "--data", self.data, "--server-args", " ".join(self.flags),
                 HERE / "train_small.py", "--epochs", "5000"], stdout=log, stderr=log, cwd=self.root,
                env={**os.environ, "RECON_BIN": BINARIES, "OMP_NUM_THREADS": "1"})
        address = self.data / "ADDRESS"
        wait_for("the server's address", lambda: self._listens(address))
        self.address = address.read_text().strip()

    def kill(self) -> None:
        """With all that it has started."""
        assert self.process is not None
        for _ in range(2):  # The second one kills.
            self.process.send_signal(signal.SIGINT)
        self.process.wait(WAIT_SECONDS)


class Strangers(unittest.TestCase):
    def start(self, kind: type[Server]) -> None:
        port = free_port()
        self.server = kind(BINARIES, "--evict-after", "30s", "--workers-min", "1", "--dashboard", "127.0.0.1:0",
                           "--metrics-address", str(port))
        self.addCleanup(self.server.__exit__)
        self.pages = [(self.server.data / "DASHBOARD").read_text().strip(), f"http://127.0.0.1:{port}/metrics"]
        self.marker = self.server.root / "ran"
        self.token = (self.server.data / "JOB_TOKEN").read_text().strip().encode()
        seed = int(os.environ.get("RECON_FIRST_SEED", random.SystemRandom().randrange(1 << 31)))
        print(f"seed {seed}", flush=True)
        self.chance = random.Random(seed)
        self.attempts = 0

    def attack_beside_a_reader(self) -> None:
        """Pages are answered, whatever strangers do."""
        reader = Reader(self.pages, GIVE_UP_SECONDS)
        reader.start()
        try:
            self.attack()
            self.join_sets()
        finally:
            reader.stop()
        self.assertGreater(self.attempts, 190)
        busy = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
        print(f"{self.attempts} attempts on a machine with {busy:.1f} times as much to do as it has cores", flush=True)
        for page, took in reader.took.items():
            print(f"{page}: {len(took)} answers, half of them within {sorted(took)[len(took) // 2]:.3f} s, all within {max(took):.3f} s",
                  flush=True)
            self.assertLess(max(took), busy * ANSWER_SECONDS)

    def updates(self) -> int:
        try:
            return int(self.server.status().get("updates", 0))
        except subprocess.CalledProcessError:
            return 0  # It does not answer yet.

    def training(self) -> int:
        """How many workers have made a step."""
        try:
            return sum(member["progress"]["steps"] > 0 for member in self.server.status()["members"])
        except (KeyError, subprocess.CalledProcessError):
            return 0

    def tokens(self) -> list[list[tuple[bytes, bytes]]]:
        token = self.token
        shown = [b"", token[:-1], token[:16], token + b"0", token[::-1], token.upper(), b"recon-job-", b"a" * 64, b" " + token[1:],
                 "t\u00f6ken-\u202e".encode(), b"x" * (1 << 20), bytes(range(33, 127))]
        return [[], [(b"recon-looks-for-token", b"1")], *([(b"recon-token", one)] for one in shown),
                [(b"recon-token", b"wrong"), (b"recon-token", token[:-2])], [(b"Recon-Token", token[:-1])],
                [(b"recon-worker-bin", b"AAAAAAAAAAAAAAAAAAAAAA")], [(b"authorization", b"Bearer " + token)]]

    def bodies(self) -> list[bytes]:
        payload = Payload(self.marker)
        join = b"\x0a\x03hvd\x12\x03bad\x28\x02"  # A JoinRequest of rank 0 of 2 in set 'hvd'.
        return [b"", join, pickle.dumps(payload), pickle.dumps(payload, 0), b"recon-pickle-1\n" + pickle.dumps(payload),
                self.chance.randbytes(self.chance.randrange(1, 3000))]

    def attempt(self, method: str, metadata: list[tuple[bytes, bytes]], messages: list[bytes]) -> None:
        self.attempts += 1
        answer = call(self.server.address, method, metadata, messages)
        if method == FRAMES:  # It says in a frame what is wrong with one.
            self.assertLess(len(answer), 512)
            return
        self.assertEqual(answer, b"", f"{method} with {[(name, value[:40]) for name, value in metadata]} was answered")

    def attack(self) -> None:
        for method in METHODS:
            for metadata in self.tokens()[:4]:
                self.attempt(method, metadata, [self.chance.choice(self.bodies())])
        for metadata in self.tokens():
            for method in ("recon.Control/Status", "recon.Control/Drain", "recon.Collective/Exchange"):
                self.attempt(method, metadata, self.bodies()[:self.chance.randrange(1, 6)])
        for _ in range(40):  # Metadata of any kind.
            name = self.chance.choice((b"recon-token", b"recon-worker-bin", b"recon-token-bin", self.chance.randbytes(6).hex().encode()))
            self.attempt(self.chance.choice(METHODS), [(name, self.chance.randbytes(self.chance.randrange(200)))], [b""])
        for content in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + self.chance.randbytes(300), pickle.dumps(Payload(self.marker)),
                        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.chance.randbytes(self.chance.randrange(1, 5000)) for _ in range(15))):
            self.attempts += 1
            garbage(self.server.address, content)

    def join_sets(self) -> None:
        """As a client does it whose token is wrong, into sets that others are in."""
        wrong = self.server.root / "wrong"
        wrong.write_bytes(self.token[:-1] + b"x")
        wrong.chmod(0o600)
        tls = ("", "", "", False, str(wrong), "")
        for name in ("hvd", "hvd/meeting", "elastic/meeting", "other"):
            for numbers in ({"rank": 0, "size": 2}, {"min_size": 1}):
                self.attempts += 1
                with self.assertRaisesRegex(recon.ReconError, "JOB_TOKEN"):
                    collective.Group(name, server=self.server.address, tls=tls, timeout=60.0, **numbers)
        with self.assertRaisesRegex(recon.ReconError, "JOB_TOKEN"):
            collective.sets(self.server.address, tls)

    def test_who_has_no_secret_gets_nothing_and_disturbs_nobody(self) -> None:
        self.start(Server)
        end = self.server.root / "END"
        worker = Script(self.server, "w0", "--epochs", "3")
        wait_for("a worker that trains", lambda: self.updates() > 0)  # The server has begun anew with its settings.
        ranks = [Rank(self.server, f"h{number}", HERE / "hvd_ranks.py", "elastic", str(end), RECON_MIN_SIZE="2") for number in range(2)]
        elastic = [Rank(self.server, f"r{number}", HERE / "elastic_ranks.py", "train", str(end), NUMBER=str(number), MIN_SIZE="3")
                   for number in range(3)]
        for rank in ranks:
            rank.wait_for_text("batch 5 of 2 ranks")
        for rank in elastic:
            rank.wait_for_text("step 5 of 3 ranks")
        self.attack_beside_a_reader()
        self.assertFalse(self.marker.exists())
        self.assertEqual(worker.wait(), 0, worker.log())
        # What there is came about by the job's own steps alone.
        before = self.server.status()
        self.assertEqual(before["phase"], "PHASE_FINISHED")
        self.assertEqual([member["name"] for member in before["members"]], ["w0"])
        self.attempt("recon.Control/Rollback", [(b"recon-token", self.token[:-1])], [b"\x08\x01"])
        self.assertEqual(self.updates(), int(before["updates"]))
        end.touch()
        all_end_well(ranks + elastic)
        for rank in ranks + elastic:
            for text in ("goes back", "reset:", "not done", "of 2 ranks" if rank in elastic else "of 1 ranks"):
                self.assertNotIn(text, rank.log())
        self.check_audit(before)

    # Forks that join sets come first: this process joins some itself in its attack, and has threads from then on.
    def test_workers_of_recon_run_are_not_disturbed_either(self) -> None:
        self.start(Launched)
        wait_for("two workers that train", lambda: self.training() == 2)
        self.attack_beside_a_reader()
        self.assertFalse(self.marker.exists())
        before = self.server.status()
        wait_for("the workers to train on", lambda: self.updates() > int(before["updates"]) + 10)
        assert self.server.process is not None
        self.server.process.send_signal(signal.SIGINT)
        self.assertEqual(self.server.process.wait(WAIT_SECONDS), 128 + signal.SIGINT, self.server.log())
        self.assertIn("[run] stopped", self.server.log().splitlines()[-1])
        self.assertEqual(len(re.findall(r"worker \S+ joined", self.server.log())), 2, self.server.log())  # Nobody was lost meanwhile.
        self.check_audit(before)

    def check_audit(self, status: dict) -> None:
        """Of the server, with what it has said of itself: who came and who was denied, and no secret."""
        audit = [json.loads(line) for path in self.server.data.glob("AUDIT*") for line in path.read_text().splitlines()]
        self.assertTrue(any(line["who"] == "a token that nobody has" and line["result"].startswith("denied") for line in audit))
        came = [line for line in audit if line["call"] in ("Join of a set", "Register") and not line["result"].startswith("denied")]
        self.assertTrue(came)
        self.assertTrue(all(line["who"] == "token" and line["result"] == "ok" for line in came))
        text = "".join(path.read_text(errors="replace") for path in
                       [*self.server.data.glob("AUDIT*"), *pathlib.Path(self.server.root).glob("*.log")])
        self.assertNotIn(self.token.decode(), text + json.dumps(status))


if __name__ == "__main__":
    unittest.main(verbosity=2)
