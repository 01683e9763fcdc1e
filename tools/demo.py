#!/usr/bin/env python3
"""Trains the MLP on Fashion-MNIST with real processes, and kills some of them on the way.

Scenarios:
  crash      a worker is killed (SIGKILL) and replaced, the server is killed and restarted   (the default)
  lose-one   a worker is killed for good; the others finish the job
  straggler  one worker is 10x slower (simulated); asks what the others' throughput is worth
  pytorch    a convolutional network in PyTorch, with recon run: a worker and the server are killed. Its curve is drawn
             beside that of the same script in plain PyTorch

Progress and a summary go to standard output; the last line is one JSON object.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TERMINAL = sys.stdout.isatty()


class Job:
    """The processes of one run; everything it starts ends with it."""

    def __init__(self, options, directory):
        self.options = options
        self.directory = pathlib.Path(directory)
        self.bin = options.bin
        self.server = None
        self.workers = {}
        self.address = "127.0.0.1:0"

    def spawn(self, name, arguments):
        log = open(self.directory / f"{name}.log", "ab")
        return subprocess.Popen([str(a) for a in arguments], stdout=log, stderr=log)

    def start_server(self):
        address_file = self.directory / "data" / "ADDRESS"
        if address_file.exists():
            address_file.unlink()
        self.server = self.spawn("server", [
            self.bin / "recon-server", "--data", self.directory / "data", "--listen", self.address,
            "--sync", self.options.sync, "--workers-min", self.options.workers,
            "--data-epochs", self.options.data_epochs, "--batch", self.options.batch,
            "--optimizer", "adam", "--learning-rate", self.options.learning_rate,
            "--schedule", f"cosine:{self.updates()}", "--warmup-updates", 100,
            "--split-samples", self.options.split_samples, "--snapshot-interval", "2s",
            "--exit-when-done",
        ])
        self.wait(lambda: address_file.exists() and address_file.read_text().strip(), 30, "the server to listen")
        self.address = address_file.read_text().strip()

    def updates(self):
        """Updates of the whole job, for the schedule: one a push, or one a step of all workers (bsp)."""
        pushes = self.options.data_epochs * 60000 // self.options.batch
        steady = self.options.workers - (1 if self.options.scenario == "lose-one" else 0)
        return pushes // steady if self.options.sync == "bsp" else pushes

    def start_worker(self, name, *extra):
        self.workers[name] = self.spawn(name, [
            self.bin / "recon-worker", "--server", self.address, "--name", name, "--model", "mlp:784-512-256-10",
            "--codec", self.options.codec, *extra,
        ])

    def ctl(self, *verb):
        done = subprocess.run([self.bin / "reconctl", *verb, "--server", self.address, "--json"],
                              capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def check_alive(self):
        """Nothing ends by itself before the job is finished."""
        for name, process in [("the server", self.server), *self.workers.items()]:
            if process is not None and process.poll() not in (None, 0):
                self.fail(f"{name} ended with code {process.returncode}")

    def wait(self, condition, seconds, what, ending=False):
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if not ending:
                self.check_alive()
            if time.monotonic() > deadline:
                self.fail(f"waited {seconds} s for {what}")
            time.sleep(0.05)

    def fail(self, why):
        for log in sorted(self.directory.glob("*.log")):
            print(f"--- {log.name}", file=sys.stderr)
            print("".join(open(log, errors="replace").readlines()[-15:]), end="", file=sys.stderr)
        raise SystemExit(f"demo: {why}")

    def stop(self):
        for process in [*self.workers.values(), self.server]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


class Screen:
    """One line that changes in a terminal; a line every few seconds in a pipe."""

    def __init__(self):
        self.last = 0.0

    def progress(self, status, total_epochs):
        now = time.monotonic()
        if not TERMINAL and now - self.last < 5:
            return
        self.last = now
        done = status["data_epochs_completed"] / total_epochs
        rate = status["samples_per_second"]
        left = int(status["samples_total"]) - int(status["samples_completed"])
        bar = ("=" * int(30 * done) + ">").ljust(31)[:30]
        alive = sum(1 for member in status.get("members", []) if member["state"] != "MEMBER_GONE")
        accuracy = f"  accuracy {status['evaluations'][-1]['accuracy']:.4f}" if status.get("evaluations") else ""
        eta = f"{left / rate:.0f} s left" if rate > 0 else "- left"
        line = (f"[{bar}] epoch {status['data_epochs_completed']:.1f}/{total_epochs}  {rate / 1000:.1f}k samples/s  "
                f"{alive} workers  snapshot {status['snapshot']['generation']}  {eta}{accuracy}")
        print(f"\r\033[K{line}" if TERMINAL else line, end="" if TERMINAL else "\n", flush=True)

    def event(self, text):
        print(f"\r\033[K* {text}" if TERMINAL else f"* {text}", flush=True)


def samples_completed_once(completions, epochs, train_samples):
    """Whether the completed splits of each data epoch tile [0, train_samples) with no gap and no overlap."""
    for epoch in range(1, epochs + 1):
        ranges = sorted((int(c["begin"]), int(c["end"])) for c in completions
                        if c["kind"] == "LEASE_TRAIN" and c["data_epoch"] == epoch)
        at = 0
        for begin, end in ranges:
            if begin != at:
                return False
            at = end
        if at != train_samples:
            return False
    return len({c["data_epoch"] for c in completions if c["kind"] == "LEASE_TRAIN"}) == epochs


def member(status, name):
    for entry in (status or {}).get("members", []):
        if entry["name"] == name:
            return entry
    return None


def run_faults(job, screen, result, state):
    """One step of the scenario: does what is due at this progress."""
    options = job.options
    status = state["status"]
    done = status["data_epochs_completed"] / options.data_epochs
    if options.scenario in ("crash", "lose-one") and done >= 0.25 and "killed" not in state:
        victim = job.workers["worker-2"]
        victim.kill()
        victim.wait()
        del job.workers["worker-2"]
        state["killed"] = True
        screen.event("killed worker-2 with SIGKILL")
        if options.scenario == "crash":
            job.start_worker("worker-2")
            state["replaced"] = victim.pid
            screen.event("started its replacement")
    if options.scenario == "crash" and done >= 0.55 and "server_killed" not in state:
        state["server_killed"] = True
        job.server.kill()
        job.server.wait()
        screen.event("killed the server with SIGKILL")
        job.start_server()
        screen.event("restarted the server on its data directory")
    if "replaced" in state and "worker_reconstruct_ms" not in result:
        entry = member(status, "worker-2")
        if entry and entry["state"] != "MEMBER_GONE" and entry["progress"]["reconstruct_ms"] > 0:
            # The first worker-2 reported a time too: count only what came after the kill.
            if entry["incarnation"] != state.get("first_incarnation"):
                result["worker_reconstruct_ms"] = round(entry["progress"]["reconstruct_ms"])
                screen.event(f"the replacement had its first push acknowledged after "
                             f"{result['worker_reconstruct_ms']} ms")
    if "server_killed" in state and "server_recover_ms" not in result and status["recover_ms"] > 0:
        result["server_recover_ms"] = round(status["recover_ms"])
        screen.event(f"the server acknowledged a push {result['server_recover_ms']} ms after its restart")


def train(job, result):
    options = job.options
    screen = Screen()
    start = time.monotonic()
    job.start_server()
    for i in range(1, options.workers + 1):
        slow = ["--slow-factor", "10"] if options.scenario == "straggler" and i == options.workers else []
        job.start_worker(f"worker-{i}", *slow)
    state = {}
    snapshots = 0
    rates = {}

    def step():
        nonlocal snapshots
        status = job.ctl("status")
        if status is None:
            return False
        state["status"] = status
        generation = int(status["snapshot"]["generation"])
        snapshots = max(snapshots, generation)
        if "killed" not in state and member(status, "worker-2"):
            state["first_incarnation"] = member(status, "worker-2")["incarnation"]
        if 0.2 < status["data_epochs_completed"] / options.data_epochs < 0.9:
            for entry in status.get("members", []):
                rates.setdefault(entry["name"], []).append(entry["progress"]["samples_per_second"])
        if int(status["samples_total"]) > 0:
            screen.progress(status, options.data_epochs)
            run_faults(job, screen, result, state)
        if status["phase"] != "PHASE_FINISHED":
            return False
        completions = job.ctl("completions")
        state["completions"] = completions["completions"] if completions else None
        return completions is not None

    job.wait(step, options.timeout, "the job to finish")
    result["train_seconds"] = round(time.monotonic() - start, 1)
    for name, process in [*job.workers.items(), ("the server", job.server)]:
        job.wait(lambda p=process: p.poll() is not None, 30, f"{name} to end", ending=True)
    job.check_alive()
    if TERMINAL:
        print()
    status = state["status"]
    result["test_accuracy"] = status["evaluations"][-1]["accuracy"]
    result["data_epochs"] = status["data_epochs_completed"]
    result["samples_completed_once"] = samples_completed_once(
        state["completions"], options.data_epochs, int(status["train_samples"]))
    result["snapshots"] = snapshots
    result["samples_per_second"] = {name: round(sum(r) / len(r)) for name, r in rates.items() if r}
    return status


def verify_snapshots(job):
    done = subprocess.run([job.bin / "reconctl", "snapshot", "verify", job.directory / "data" / "snapshots", "--json"],
                          capture_output=True, text=True)
    return done.returncode == 0, len(json.loads(done.stdout))


def summarize(job, result, status, verified):
    ok, kept = verified
    lines = [
        ("test accuracy", f"{result['test_accuracy']:.4f}   (best of {len(status['evaluations'])} evaluations: "
                          f"{max(e['accuracy'] for e in status['evaluations']):.4f})"),
        ("data", f"{result['data_epochs']:.0f} epochs of {int(status['train_samples']):,} samples, every sample "
                 + ("completed exactly once" if result["samples_completed_once"] else "NOT completed exactly once")),
        ("time", f"{result['train_seconds']} s in all, {job.options.sync}, codec {job.options.codec}, "
                 f"{job.options.workers} workers"),
    ]
    if "worker_reconstruct_ms" in result:
        lines.append(("worker killed", f"its replacement was training after {result['worker_reconstruct_ms']} ms "
                                       "(from process start to its first acknowledged push)"))
    if "server_recover_ms" in result:
        lines.append(("server killed", f"it was training again after {result['server_recover_ms']} ms "
                                       "(from process start to its first acknowledged push)"))
    for name, rate in sorted(result["samples_per_second"].items()):
        slow = " (slowed 10x, simulated)" if job.options.scenario == "straggler" and name.endswith(str(job.options.workers)) else ""
        lines.append((name, f"{rate:,} samples/s on average{slow}"))
    lines.append(("snapshots", f"{result['snapshots']} published, {kept} kept, "
                               + ("all verified" if ok else "SOME DO NOT VERIFY")))
    width = max(len(name) for name, _ in lines)
    print()
    for name, text in lines:
        print(f"  {name.ljust(width)}  {text}")
    print()


def check(options, result, snapshots_ok):
    """What is not as it should be."""
    complaints = []
    if not snapshots_ok:
        complaints.append("a snapshot does not verify")
    if not result["samples_completed_once"]:
        complaints.append("not every sample was completed exactly once")
    if result["test_accuracy"] < options.expect_accuracy:
        complaints.append(f"test accuracy {result['test_accuracy']}, expected at least {options.expect_accuracy}")
    if options.scenario == "crash":
        for key in ("worker_reconstruct_ms", "server_recover_ms"):
            if key not in result:
                complaints.append(f"{key} was not measured: the job ended too early")
    return complaints


def show_dashboard(options):
    """Every server of the demo serves one, at an address that stays when it is restarted."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", options.dashboard))
        except OSError:
            free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["RECON_DASHBOARD"] = str(port)
    print(f"demo: dashboard at http://127.0.0.1:{port}/ while the demo runs", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=["crash", "lose-one", "straggler", "none", "pytorch"], default="crash")
    parser.add_argument("--sync", help="asp, bsp or ssp:S (default: asp; pytorch: bsp)")
    parser.add_argument("--workers", type=int, help="default: 2; lose-one and straggler: 3")
    parser.add_argument("--codec", default="fp16", help="not of pytorch (default: fp16)")
    parser.add_argument("--data-epochs", type=int, help="default: 12; pytorch: 3")
    parser.add_argument("--batch", type=int, help="default: 64; pytorch: 100, in a step of all workers")
    parser.add_argument("--learning-rate", help="default: 0.001; pytorch: 0.02")
    parser.add_argument("--split-samples", type=int, default=2000, help="not of pytorch (default: 2000)")
    parser.add_argument("--width", type=int, default=4, help="of pytorch: channels of the first stage (default: 4)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin", help="where the programs are")
    parser.add_argument("--timeout", type=float, default=600, help="seconds")
    parser.add_argument("--expect-accuracy", type=float, default=0, metavar="X", help="fail if it ends with less")
    parser.add_argument("--keep", metavar="DIR", help="keep logs and data in DIR")
    parser.add_argument("--dashboard", type=int, nargs="?", const=9470, metavar="PORT",
                        help="show the job in a browser meanwhile; prints the address (default port: 9470, or a free one)")
    options = parser.parse_args()
    defaults = {"workers": 3 if options.scenario in ("lose-one", "straggler") else 2, "sync": "asp", "data_epochs": 12,
                "batch": 64, "learning_rate": "0.001"}
    if options.scenario == "pytorch":
        defaults |= {"sync": "bsp", "data_epochs": 3, "batch": 100, "learning_rate": "0.02"}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.workers < 2 and options.scenario != "none":
        parser.error(f"--scenario {options.scenario} needs at least 2 workers")
    directory = options.keep or tempfile.mkdtemp(prefix="recon-demo-")
    os.makedirs(directory, exist_ok=True)
    if os.path.exists(os.path.join(directory, "data")):
        parser.error(f"--keep {directory} holds the data of another run")
    if options.dashboard is not None:
        show_dashboard(options)
    if options.scenario == "pytorch":
        import demo_pytorch  # It takes parts of this module.
        return demo_pytorch.main(options, pathlib.Path(directory))
    job = Job(options, directory)
    result = {}
    try:
        status = train(job, result)
        verified = verify_snapshots(job)
        summarize(job, result, status, verified)
        order = ["test_accuracy", "data_epochs", "samples_completed_once", "worker_reconstruct_ms",
                 "server_recover_ms", "train_seconds", "snapshots", "samples_per_second"]
        print(json.dumps({key: result[key] for key in order if key in result}))
        complaints = check(options, result, verified[0])
    finally:
        job.stop()
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    for complaint in complaints:
        print(f"demo: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
