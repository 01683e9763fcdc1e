"""The demo's scenario `pytorch`: trains the image classifier of worker/python/examples with `recon run`, kills a worker
and the server on the way, and shows its curve beside that of its plain twin, which nobody disturbs."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from demo import ROOT, Screen, member, samples_completed_once

EXAMPLES = ROOT / "worker/python/examples"
# Shares of the job after which the worker is killed, and then the server.
WORKER_DIES_AT = 0.35
SERVER_DIES_AT = 0.65
# The accuracy may be so much below the twin's.
ACCURACY_LESS_MAX = 0.01
# A spare that has used no processor time for so long has imported everything.
WARM_SECONDS = 1.0
# reconctl is asked so often; all the time while something is measured by it.
STATUS_SECONDS = 0.25
LOG_LINES = 30
BAR = 50

Curve = list[dict[str, float]]  # After each pass: "pass", "loss" and "accuracy" with the test data.


def fail(why: str) -> NoReturn:
    raise SystemExit(f"demo: {why}")


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Of whatever runs a script: settings of the caller's own are not the demo's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RECON_") or name == "RECON_DASHBOARD"}
    return {**clean, "RECON_BIN": str(options.bin), "PYTHONPATH": str(options.bin.parent / "python"),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def script(options: argparse.Namespace, name: str, batch: int) -> list[str]:
    return [str(EXAMPLES / name), "--epochs", str(options.data_epochs), "--width", str(options.width),
            "--batch", str(batch), "--lr", options.learning_rate, "--loaders", "0"]


def train_plain(options: argparse.Namespace, screen: Screen) -> Curve:
    """Returns the twin's curve."""
    screen.event("training plain_cnn.py, in one process")
    done = subprocess.run([options.python, *script(options, "plain_cnn.py", options.batch)], capture_output=True,
                          text=True, env=environment(options), timeout=options.timeout)
    if done.returncode != 0:
        fail(f"plain_cnn.py ended with code {done.returncode}: {done.stderr.strip()}")
    found = re.findall(r"^test: loss (\S+), accuracy (\S+)$", done.stdout, re.MULTILINE)
    if len(found) != options.data_epochs:
        fail(f"plain_cnn.py tested {len(found)} times in {options.data_epochs} passes: {done.stdout}")
    return [{"pass": number, "loss": float(loss), "accuracy": float(accuracy)}
            for number, (loss, accuracy) in enumerate(found, 1)]


class Process:
    """One that somebody else has started, as /proc shows it."""

    def __init__(self, pid: int):
        self.pid = pid
        folder = pathlib.Path("/proc", str(pid))
        stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        self.parent = int(stat[1])
        self.cpu_ticks = int(stat[11]) + int(stat[12])
        self.command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        self.environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")


class Launched:
    """`recon run` with its server, its workers and their spare; it ends with this object's use."""

    def __init__(self, options: argparse.Namespace, directory: pathlib.Path):
        self.options = options
        self.log = directory / "run.log"
        self.data = directory / "data"
        # All workers together have the twin's batch in each step.
        batch = max(1, options.batch // options.workers)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [options.python, "-m", "recon", "run", "--workers", str(options.workers), "--data", str(self.data),
                 "--server-args", f"--sync {options.sync}", *script(options, "cnn.py", batch)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(options), cwd=directory)

    def children(self) -> list[Process]:
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                process = Process(int(entry.name))
            except OSError:
                continue  # It has ended meanwhile.
            if process.parent == self.process.pid:
                found.append(process)
        return found

    def worker(self, number: int) -> Process | None:
        """The first process of that worker: one that was a spare has another environment."""
        end = f"-w{number}"
        return next((child for child in self.children() if any(
            word.startswith("RECON_WORKER=") and word.endswith(end) for word in child.environment)), None)

    def server(self) -> Process | None:
        return next((child for child in self.children() if child.command[0].endswith("/recon-server")), None)

    def spare(self) -> Process | None:
        return next((child for child in self.children() if any(
            word.endswith("/launch/spare.py") for word in child.command)), None)

    def ctl(self, verb: str) -> Any:
        """What reconctl says, or None while no server answers."""
        address = self.data / "ADDRESS"
        if not address.exists():
            return None
        done = subprocess.run([self.options.bin / "reconctl", verb, "--server", address.read_text().strip(), "--json"],
                              capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def fail(self, why: str) -> NoReturn:
        print(f"--- {self.log.name}", file=sys.stderr)
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]), file=sys.stderr)
        fail(why)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.options.timeout
        while not condition():
            if self.process.poll() is not None:
                self.fail(f"recon run ended with code {self.process.returncode} before {what}")
            if time.monotonic() > deadline:
                self.fail(f"waited {self.options.timeout:.0f} s for {what}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kills it, if it still runs; its guard ends what it has started."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Disturbed:
    """The job's course: what is killed, when, and how long it took to train again."""

    def __init__(self, run: Launched, screen: Screen):
        self.run = run
        self.screen = screen
        self.status: dict[str, Any] = {}
        self.completions: list[dict[str, Any]] = []
        self.killed: list[str] = []
        self.result: dict[str, Any] = {}
        self.worker_killed_at = 0.0
        self.worker_dead = 0  # The incarnation of the worker that was killed.
        self.asked = 0.0
        self.spare_seen = (0, 0, 0.0)  # Its pid and processor time, and since when it has used no more.

    def step(self) -> bool:
        """Looks, and does what is due. Returns whether the job is done."""
        measuring = self.worker_killed_at and "worker_reconstruct_ms" not in self.result
        if not measuring and time.monotonic() - self.asked < STATUS_SECONDS:
            return False
        self.asked = time.monotonic()
        status = self.run.ctl("status")
        if status is None or int(status["samples_total"]) == 0:
            return False
        self.status = status
        self.screen.progress(status, self.run.options.data_epochs)
        done = status["data_epochs_completed"] / self.run.options.data_epochs
        if measuring:
            self.look_for_replacement()
        elif not self.worker_killed_at and self.spare_is_warm() and done >= WORKER_DIES_AT:
            self.kill_worker()
        elif "server" not in self.killed and "worker_reconstruct_ms" in self.result and done >= SERVER_DIES_AT:
            self.kill("server", self.run.server())
        elif "server" in self.killed and "server_recover_ms" not in self.result and status["recover_ms"] > 0:
            self.result["server_recover_ms"] = round(status["recover_ms"])
            self.screen.event(f"the server acknowledged a push {self.result['server_recover_ms']} ms after its restart")
        if status["phase"] != "PHASE_FINISHED":
            return False
        answer = self.run.ctl("completions")
        self.completions = answer["completions"] if answer else []
        return answer is not None

    def kill(self, what: str, process: Process | None) -> None:
        if process is None:
            self.run.fail(f"there is no {what} to kill")
        os.kill(process.pid, signal.SIGKILL)
        self.killed.append(what)
        self.screen.event(f"killed the {what} (pid {process.pid}) with SIGKILL")

    def spare_is_warm(self) -> bool:
        spare = self.run.spare()
        if spare is None:
            return False
        pid, ticks, since = self.spare_seen
        if (spare.pid, spare.cpu_ticks) != (pid, ticks):
            self.spare_seen = (spare.pid, spare.cpu_ticks, time.monotonic())
            return False
        return time.monotonic() - since >= WARM_SECONDS

    def last_worker(self) -> dict[str, Any] | None:
        end = f"-w{self.run.options.workers - 1}"
        name = next((entry["name"] for entry in self.status.get("members", []) if entry["name"].endswith(end)), "")
        return member(self.status, name)

    def kill_worker(self) -> None:
        entry = self.last_worker()
        if entry is None:
            return
        self.worker_dead = entry["incarnation"]
        self.worker_killed_at = time.monotonic()
        self.kill("worker", self.run.worker(self.run.options.workers - 1))

    def look_for_replacement(self) -> None:
        entry = self.last_worker()
        if entry and entry["incarnation"] != self.worker_dead and entry["progress"]["steps"] > 0:
            taken = round(1000 * (time.monotonic() - self.worker_killed_at))
            self.result["worker_reconstruct_ms"] = taken
            self.screen.event(f"its replacement had a push acknowledged {taken} ms after the kill")


def train(options: argparse.Namespace, screen: Screen, directory: pathlib.Path) -> tuple[dict[str, Any], Curve]:
    """Returns the members of the last line, and the curve."""
    screen.event(f"training cnn.py with recon run, {options.workers} workers")
    started = time.monotonic()
    run = Launched(options, directory)
    try:
        course = Disturbed(run, screen)
        run.wait(course.step, "the end of the job")
        result = {**course.result, "train_seconds": round(time.monotonic() - started, 1)}
        if run.process.wait(options.timeout) != 0:
            run.fail(f"recon run ended with code {run.process.returncode}")
    finally:
        run.stop()
    result["kills"] = len(course.killed)
    result["data_epochs"] = course.status["data_epochs_completed"]
    result["samples_completed_once"] = samples_completed_once(
        course.completions, options.data_epochs, int(course.status["train_samples"]))
    curve = [{"pass": entry["data_epochs"], "loss": entry["loss"], "accuracy": entry["accuracy"]}
             for entry in course.status["evaluations"]]
    if not curve:
        run.fail("the job has no evaluation")
    result["test_accuracy"] = curve[-1]["accuracy"]
    return result, curve


def draw(plain: Curve, ours: Curve) -> None:
    """Bars in the terminal. They begin at the least of all values but a little, so that differences can be seen."""
    for key in ("loss", "accuracy"):
        values = [point[key] for point in plain + ours]
        low, high = min(values), max(values)
        low -= 0.1 * (high - low) or 0.1
        print(f"\n  test {key} after each pass; bars begin at {low:.3f}")
        rows = sorted([(point["pass"], "plain", point[key]) for point in plain]
                      + [(point["pass"], "recon", point[key]) for point in ours])
        for number, name, value in rows:
            bar = "=" * round(BAR * (value - low) / (high - low))
            print(f"  {number if name == 'plain' else '':>3} {name} {value:.4f} {bar}")


def write_curves(folder: pathlib.Path, plain: Curve, ours: Curve) -> None:
    """curves.csv, and curves.svg with two lines each for loss and accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{name},{point['pass']},{point['loss']:.6f},{point['accuracy']:.6f}"
            for name, curve in (("plain", plain), ("recon", ours)) for point in curve]
    (folder / "curves.csv").write_text("\n".join(["run,pass,loss,accuracy", *rows]) + "\n")
    shapes = []
    for left, key in ((50, "loss"), (400, "accuracy")):
        values = [point[key] for point in plain + ours]
        low, high = min(values), max(values)
        last = max(point["pass"] for point in plain + ours)

        def at(point: dict[str, float]) -> tuple[float, float]:
            return (left + 280 * (point["pass"] - 1) / max(1, last - 1),
                    230 - 190 * (point[key] - low) / ((high - low) or 1))

        shapes.append(f'<text x="{left}" y="20">test {key} after each of {last} passes</text>'
                      f'<text x="{left - 45}" y="44">{high:.3f}</text><text x="{left - 45}" y="234">{low:.3f}</text>'
                      f'<rect x="{left}" y="40" width="280" height="190" fill="none" stroke="#ccc"/>')
        for color, curve in (("#888", plain), ("#c33", ours)):
            places = [at(point) for point in curve]
            shapes.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="'
                          + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + '"/>')
            shapes += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
    (folder / "curves.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="280" font-family="sans-serif" font-size="12">\n'
        + "\n".join(shapes) + '\n<text x="50" y="262" fill="#888">plain PyTorch, one process</text>'
        '<text x="400" y="262" fill="#c33">recon: a worker and the server are killed</text>\n</svg>\n')


def check(result: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    complaints = []
    if not result["samples_completed_once"]:
        complaints.append("not every sample was completed exactly once")
    if result["test_accuracy"] < result["plain_accuracy"] - ACCURACY_LESS_MAX:
        complaints.append(f"test accuracy {result['test_accuracy']:.4f} is more than {ACCURACY_LESS_MAX} below the "
                          f"plain twin's, {result['plain_accuracy']:.4f}")
    if result["kills"] != 2:
        complaints.append(f"{result['kills']} processes were killed, not 2: the job ended too early")
    for key in ("worker_reconstruct_ms", "server_recover_ms"):
        if key not in result:
            complaints.append(f"{key} was not measured: the job ended too early")
    return complaints


def find_python(options: argparse.Namespace) -> None:
    """Chooses the Python of tools/setup.sh --tests, or the caller's. Exits with 77 where it has no PyTorch: the test
    that calls this is skipped then."""
    own = ROOT / "build/python/bin/python"
    options.python = str(own if own.exists() else sys.executable)
    for module, code, remedy in (("torch", 77, "SKIPPED: tools/setup.sh --tests installs it"),
                                 ("recon.torch", 1, "tools/build.sh release recon_core builds it")):
        done = subprocess.run([options.python, "-c", f"import {module}"], capture_output=True, text=True,
                              env=environment(options))
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"demo: {options.python} cannot import {module}: {why}; {remedy}", file=sys.stderr)
            raise SystemExit(code)


def main(options: argparse.Namespace, directory: pathlib.Path) -> int:
    """`directory` is for logs and data, and goes unless --keep names it."""
    options.bin = options.bin.resolve()
    screen = Screen()
    curves = (directory if options.keep else ROOT / "build/demo-pytorch").resolve()
    try:
        find_python(options)
        plain = train_plain(options, screen)
        result, ours = train(options, screen, directory.resolve())
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    result["plain_accuracy"] = plain[-1]["accuracy"]
    draw(plain, ours)
    write_curves(curves, plain, ours)
    print(f"\n  curves.csv and curves.svg are in {curves}\n")
    order = ["test_accuracy", "plain_accuracy", "data_epochs", "samples_completed_once", "worker_reconstruct_ms",
             "server_recover_ms", "train_seconds", "kills"]
    print(json.dumps({key: result[key] for key in order if key in result}))
    complaints = check(result)
    for complaint in complaints:
        print(f"demo: {complaint}", file=sys.stderr)
    return 1 if complaints else 0
