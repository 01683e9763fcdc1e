#!/usr/bin/env python3
"""`recon run`: real servers and workers are started, killed, started again and ended. Workers are Python scripts, most
of which become a recon-worker (exec), so that the job is a real one. Needs nothing but the standard library.

Usage: run_test.py --bin DIR [unittest's arguments]."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The launcher alone: importing the whole package needs its extension module and NumPy.
LAUNCHER = tempfile.TemporaryDirectory(prefix="recon-launcher-")
pathlib.Path(LAUNCHER.name, "recon").mkdir()
for part in ("__main__.py", "_environment.py", "run.py", "launch"):
    pathlib.Path(LAUNCHER.name, "recon", part).symlink_to(ROOT / "worker/python/recon" / part)
sys.path.insert(0, LAUNCHER.name)

from recon.launch.machine import cores, devices, imports_of  # noqa: E402
from recon.launch.server import duration, progress_line, slow_member  # noqa: E402
from recon.launch.workers import Restarts  # noqa: E402

BIN = pathlib.Path()
WAIT_SECONDS = 90

# A worker of generated data; each batch takes a moment, so that a job is long enough to be disturbed.
WORKER = """
import os, sys
print("pid", os.getpid(), "is", os.environ["RECON_WORKER"], flush=True)
program = os.path.join(os.environ["RECON_BIN"], "recon-worker")
os.execv(program, [program, "--server", os.environ["RECON_SERVER"], "--name", os.environ["RECON_WORKER"],
                   "--device", "cpu", "--data", "clusters:20000,1000,64,4", "--model", "mlp:64-32-4",
                   "--step-ms", sys.argv[1]])
"""


class Run:
    """A launcher that runs; its lines are collected as they come."""

    def __init__(self, folder, *arguments, environment=None):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RECON_")}
        clean.pop("CUDA_VISIBLE_DEVICES", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recon", "run", *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**clean, "RECON_BIN": str(BIN), "PYTHONPATH": LAUNCHER.name, **(environment or {})})
        self.lines = []
        self.news = threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()
        with self.news:
            self.lines.append(None)
            self.news.notify_all()

    def text(self):
        return "\n".join(line for line in self.lines if line is not None)

    def until(self, pattern, count=1):
        """Waits for the count-th line that matches, and returns its match."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.news:
            while True:
                found = [match for line in self.lines if line is not None and (match := re.search(pattern, line))]
                if len(found) >= count:
                    return found[count - 1]
                if None in self.lines or not self.news.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no line {count} like {pattern!r} in\n{self.text()}")

    def ended(self):
        """Waits for the end; returns the exit code and the last line."""
        code = self.process.wait(WAIT_SECONDS)
        self.reader.join()
        return code, [line for line in self.lines if line][-1]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def gone(pid):
    """Whether the process has ended; one that nobody has waited for yet has."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def eventually(condition, what):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.02)


class Launched(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="recon-run-"))
        self.addCleanup(self.remove)

    def remove(self):
        # What a killed launcher had started ends a moment after it, and may be making files still.
        def removed():
            shutil.rmtree(self.folder, ignore_errors=True)
            return not self.folder.exists()
        eventually(removed, f"{self.folder} is there still")

    def script(self, text, name="train.py"):
        (self.folder / name).write_text(text)
        return name

    def run_it(self, *arguments, environment=None):
        run = Run(self.folder, *arguments, environment=environment)
        self.addCleanup(run.close)
        return run

    def job(self, workers, epochs, *flags, step_ms=2, script=WORKER):
        return self.run_it("--workers", workers, "--server-args", f"--data-epochs {epochs} --split-samples 1000", *flags,
                           self.script(script), step_ms)


class WholeJob(Launched):
    def test_a_job_runs_to_its_end(self):
        run = self.job(2, 3)
        self.assertEqual(run.ended()[0], 0, run.text())
        self.assertRegex(run.lines[-2], r"^\[run\] done in \d+ s$")
        names = {run.until(rf"^\[w{number}\] pid \d+ is (\S+)")[1] for number in range(2)}
        self.assertEqual(len(names), 2)
        self.assertRegex(run.until(r"data in (\S+)")[1], r"^recon-jobs/train-")
        self.assertTrue((self.folder / run.until(r"data in (\S+)")[1] / "snapshots").is_dir())

    def test_another_machine_adds_workers(self):
        run = self.job(1, 12, "--listen", "127.0.0.2:0", step_ms=4)
        address = run.until(r"server (127\.0\.0\.2:\d+)")[1]
        run.until(r"^\[run\] epoch ")
        other = self.run_it("--workers", 1, "--server", address, "train.py", 4)
        other.until(r"^\[w0\] .*first push acknowledged")
        self.assertEqual((run.ended()[0], other.ended()[0]), (0, 0), run.text() + other.text())

    def test_a_killed_worker_and_a_killed_server_are_started_again(self):
        run = self.job(2, 12)
        run.until(r"^\[run\] epoch ")
        first = int(run.until(r"^\[w1\] pid (\d+) is (\S+)")[1])
        os.kill(first, signal.SIGKILL)
        run.until(rf"^\[run\] w1 \(pid {first}\) was killed by SIGKILL; starting it again$")
        self.assertEqual(run.until(r"^\[w1\] pid (\d+) is (\S+)", 2)[2], run.until(r"^\[w1\] pid (\d+) is (\S+)")[2])
        run.until(r"^\[w1\] .*first push acknowledged", 2)
        server = self.pid_of_server(run)
        os.kill(server, signal.SIGKILL)
        run.until(rf"^\[run\] server \(pid {server}\) was killed by SIGKILL; starting it again on recon-jobs/")
        code, last = run.ended()
        self.assertEqual((code, last[:12]), (0, "[run] done i"), run.text())

    def pid_of_server(self, run):
        data = str(run.until(r"data in (\S+)")[1])
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/recon-server") and data.encode() in words and (
                    os.path.realpath(entry.parent / "cwd") == os.path.realpath(self.folder)):
                return int(entry.parent.name)
        raise AssertionError("no server runs")

    def test_a_worker_that_always_fails_is_given_up_while_the_others_train(self):
        run = self.job(2, 8, script="import os\nif os.environ['RECON_WORKER'].endswith('w1') and os.path.exists('broken'):\n"
                                    "    input_shape = [][0]\n" + WORKER)
        run.until(r"^\[run\] epoch ")
        (self.folder / "broken").touch()
        os.kill(int(run.until(r"^\[w1\] pid (\d+)")[1]), signal.SIGKILL)
        run.until(r"^\[run\] w1 \(pid \d+\) ended with exit code 1; starting it again")
        run.until(r"^\[run\] w1 \(pid \d+\) ended with exit code 1; it is not started again: the same error twice")
        run.until(r"^\[server\] .*all 8 data epochs are completed")
        code, last = run.ended()
        self.assertEqual(code, 1, run.text())
        self.assertRegex(last, r"first cause: w1 \(pid \d+\) ended with exit code 1: IndexError: list index out of range$")
        run.until(r"^\[run\] failed: the job is done, but w1 did not end well$")
        self.assertNotIn("spare.py", run.text())  # The first of the two was the warm spare.

    def test_a_job_that_is_left_goes_on_later(self):
        run = self.job(2, 16, "--data", "job", step_ms=4)
        run.until(r"^\[run\] epoch ")
        run.process.send_signal(signal.SIGINT)
        code, last = run.ended()
        self.assertEqual(code, 130, run.text())
        self.assertEqual(last, "[run] stopped; the same command with --data job goes on")
        run.until(r"^\[server\] .*left \(stopped\)", 2)
        run.until(r"^\[server\] .*snapshot \d+ published \(drain\)")
        again = self.job(2, 16, "--data", "job", step_ms=1)
        self.assertEqual(again.ended()[0], 0, again.text())
        again.until(r"^\[server\] .*restored snapshot")

    def test_scripts_that_end_early_do_not_end_well(self):
        run = self.job(1, 3, script="print('nothing to do')")
        code, last = run.ended()
        self.assertEqual(code, 1)
        self.assertRegex(last, r"failed: all workers have ended, but the job is not done at epoch 0.00 of 3$")

    def test_scripts_that_only_call_collectives_end_well_without_a_job(self):
        run = self.run_it("--workers", 2, "--only-sets", self.script(
            "import os; print('at least', os.environ['RECON_MIN_SIZE'], 'at', os.environ['RECON_SERVER'])"))
        run.until(r"^\[w\d\] at least 2 at 127\.0\.0\.1:\d+$", 2)
        code, last = run.ended()
        self.assertEqual(code, 0, run.text())
        self.assertRegex(last, r"^\[run\] done in \d+ s$")
        failing = self.run_it("--workers", 1, "--only-sets", "--restarts", 0, self.script("raise SystemExit(3)"))
        self.assertEqual(failing.ended()[0], 3, failing.text())


class Failures(Launched):
    """What is wrong with a script ends the job, and its cause is the last line."""

    def check_given_up(self, script, code, cause, starts=2):
        run = self.run_it("--workers", 2, "--server-args", "--data-epochs 3", self.script(script))
        self.assertEqual(run.ended()[0], code, run.text())
        self.assertRegex(run.ended()[1], rf"^\[run\] first cause: w\d \(pid \d+\) ended with exit code {code}: {cause}$")
        self.assertLessEqual(sum(" starting it again" in line for line in run.lines if line), starts, run.text())

    def test_a_syntax_error(self):
        self.check_given_up("for in range(3):\n", 1, "SyntaxError: invalid syntax")

    def test_a_module_that_is_not_there(self):
        self.check_given_up("import no_such_module_at_all\n", 1,
                            "ModuleNotFoundError: No module named 'no_such_module_at_all'")

    def test_wrong_usage(self):
        self.check_given_up("import argparse\np = argparse.ArgumentParser(prog='train')\np.add_argument('--lr', required=True)\n"
                            "p.parse_args()\n", 2, "train: error: the following arguments are required: --lr")

    def test_what_dies_too_often_is_named_with_the_limit(self):
        run = self.run_it("--workers", 1, "--restarts", 2, "--server-args", "--data-epochs 3",
                          self.script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"))
        code, last = run.ended()
        self.assertEqual(code, 128 + signal.SIGKILL, run.text())
        self.assertRegex(last, r"first cause: w0 \(pid \d+\) was killed by SIGKILL$")
        run.until(r"failed: the last worker, w0, died 3 times within 600 s, 2 restarts are allowed$")

    def test_a_server_with_wrong_flags(self):
        run = self.run_it("--workers", 1, "--server-args", "--sync sometimes", self.script("print('started')"))
        code, last = run.ended()
        self.assertEqual(code, 2, run.text())
        self.assertRegex(last, r"first cause: server \(pid \d+\) ended with exit code 2: .*sometimes")
        self.assertNotIn("[w0]", run.text())

    def check_refused(self, message, *arguments, environment=None):
        run = self.run_it(*arguments, environment=environment)
        code, last = run.ended()
        self.assertEqual(code, 2, run.text())
        self.assertRegex(last, message)

    def test_wrong_flags_are_one_line(self):
        self.script("print(1)")
        self.check_refused("nothere.py: there is no such file", "--workers", 1, "nothere.py")
        self.check_refused("--workers 0: there has to be one", "--workers", 0, "train.py")
        self.check_refused("for a server that is started here, not for h:1", "--workers", 1, "--server", "h:1",
                           "--data", "d", "train.py")
        self.check_refused("--listen and --server-args are for a server that is started here, not for h:1", "--workers", 1,
                           "--server", "h:1", "--listen", "127.0.0.1:0", "train.py")
        self.check_refused("there is no recon-server in RECON_BIN", "--workers", 1, "train.py",
                           environment={"RECON_BIN": "/nowhere", "PATH": "/nowhere"})


class Ends(Launched):
    STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: print("asked to leave", flush=True))
child = os.fork()
os.write(1, b"child %d\\n" % child if child else b"pid %d\\n" % os.getppid())
while True:
    signal.pause()
"""

    def processes_of(self, run):
        run.until(r"^\[w\d\] child ", 2)
        run.until(r"^\[w\d\] pid ", 2)
        return [int(match[1]) for line in run.lines if line and (match := re.search(r"(?:pid|child) (\d+)$", line))]

    def test_a_second_signal_kills(self):
        run = self.run_it("--workers", 2, self.script(self.STUBBORN))
        pids = self.processes_of(run)
        run.process.send_signal(signal.SIGINT)
        run.until(r"asked to leave", 2)
        self.assertFalse(any(gone(pid) for pid in pids))
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.ended()[0], 130, run.text())
        eventually(lambda: all(gone(pid) for pid in pids), f"a process of {pids} lives")

    def test_nothing_outlives_a_launcher_that_is_killed(self):
        run = self.run_it("--workers", 2, self.script(self.STUBBORN))
        pids = self.processes_of(run)
        run.process.kill()
        eventually(lambda: all(gone(pid) for pid in pids), f"a process of {pids} lives")
        run.reader.join(WAIT_SECONDS)
        self.assertFalse(run.reader.is_alive(), "somebody still holds the launcher's output: the server lives")

    def test_a_dead_workers_own_processes_end_with_it(self):
        run = self.run_it("--workers", 2, self.script(self.STUBBORN))
        self.processes_of(run)
        child = int(run.until(r"^\[w1\] child (\d+)$")[1])
        os.kill(int(run.until(r"^\[w1\] pid (\d+)$")[1]), signal.SIGKILL)
        run.until(r"^\[w1\] child ", 2)
        eventually(lambda: gone(child), f"{child} lives")
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(run.ended()[0], 128 + signal.SIGTERM, run.text())


class Environment(Launched):
    # The first process of w0 waits for the spare, then dies; its replacement says what it has.
    SPARE = """
import sys
warm = "xmlrpc.client" in sys.modules
import glob, os, signal, time
import xmlrpc.client
import beside
print("warm" if warm else "cold", __name__, sys.argv[1:], os.path.basename(__file__), os.environ["RECON_WORKER"],
      sys.modules["__main__"].SPARE_TEST, flush=True)
if warm:
    signal.pause()
def spare_waits():
    for entry in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(entry) as stat, open(entry[:-len("stat")] + "cmdline") as words:
                if int(stat.read().rsplit(")", 1)[1].split()[1]) == os.getppid() and "launch/spare.py" in words.read():
                    return True
        except OSError:
            pass
    return False
while not spare_waits():
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""

    def test_a_warm_spare_takes_a_dead_workers_place(self):
        self.script("print('beside is imported by', __name__)", "beside.py")
        run = self.run_it("--workers", 1, self.script("SPARE_TEST = 7\n" + self.SPARE), "--lr", "0.1")
        cold = run.until(r"^\[w0\] (cold|warm) (.*)$")
        warm = run.until(r"^\[w0\] (cold|warm) (.*)$", 2)
        self.assertEqual((cold[1], warm[1]), ("cold", "warm"), run.text())
        self.assertEqual(cold[2], warm[2])
        self.assertRegex(cold[2], r"^__main__ \['--lr', '0.1'\] train.py \S+-w0 7$")
        self.assertNotIn("[spare] beside", run.text())

    def test_workers_of_a_server_elsewhere_and_their_devices(self):
        script = self.script("import os\nprint(os.environ['RECON_SERVER'], os.environ['CUDA_VISIBLE_DEVICES'],\n"
                             "      os.environ['OMP_NUM_THREADS'])\nprint('no end of line', end='')\n")
        run = self.run_it("--workers", 3, "--no-spare", script,
                          environment={"RECON_SERVER": "127.0.0.1:9", "CUDA_VISIBLE_DEVICES": "4,GPU-7"})
        self.assertEqual(run.ended()[0], 0, run.text())
        threads = max(1, cores() // 3)
        for number, device in enumerate(["4", "GPU-7", "4"]):
            run.until(rf"^\[w{number}\] 127.0.0.1:9 {device} {threads}$")
            run.until(rf"^\[w{number}\] no end of line$")
        self.assertNotIn("[server]", run.text())


class Pieces(Launched):
    def test_imports_are_those_of_installed_packages(self):
        self.script("", "data.py")
        self.script("from __future__ import annotations\nimport torch.nn as nn, json\nfrom torch import optim\n"
                    "from . import here\nimport data\ndef f():\n    import late\n")
        self.assertEqual(imports_of(str(self.folder / "train.py")), ["torch.nn", "json", "torch"])
        self.assertEqual(imports_of(str(self.folder / "nothere.py")), [])

    def test_devices_are_those_that_the_caller_allows(self):
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.addCleanup(lambda: os.environ.pop("CUDA_VISIBLE_DEVICES") if before is None
                        else os.environ.update(CUDA_VISIBLE_DEVICES=before))
        for value, expected in [("0, 3", ["0", "3"]), ("", []), ("-1", [])]:
            os.environ["CUDA_VISIBLE_DEVICES"] = value
            self.assertEqual(devices(), expected)

    def test_restarts_are_counted_within_the_window_and_wait_longer_each_time(self):
        restarts = Restarts(2, 600)
        self.assertEqual([(restarts.died(), restarts.delay()) for _ in range(3)], [(True, 0), (True, 0.5), (False, 1)])
        restarts.deaths = [at - 601 for at in restarts.deaths]
        self.assertTrue(restarts.died())

    def test_progress_says_who_is_slow(self):
        def member(name, seconds):
            return {"name": name, "state": "MEMBER_ACTIVE", "progress": {"batch_seconds": seconds, "steps": 3, "last_loss": 0.5}}
        self.assertEqual(slow_member([member("a", 0.010), member("b", 0.012)]), "")
        members = [member("a", 0.010), member("b", 0.041), member("c", 0.012)]
        self.assertEqual(slow_member(members), "b is slow: 41.0 ms a batch, others 12.0 ms")
        status = {"members": members, "samples_per_second": 1000.0, "data_epochs_completed": 1.5, "samples_total": 100000,
                  "samples_completed": 10000, "job": {"data_epochs": 5}, "evaluations": [{"accuracy": 0.75}]}
        self.assertEqual(progress_line(status), "epoch 1.50 of 5, loss 0.5, accuracy 0.7500, 1,000 samples/s of 3 workers, "
                                                "1 min 30 s left, b is slow: 41.0 ms a batch, others 12.0 ms")
        self.assertEqual(duration(7322), "2 h 2 min")


if __name__ == "__main__":
    at = sys.argv.index("--bin")
    BIN = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at:at + 2]
    unittest.main(verbosity=2)
