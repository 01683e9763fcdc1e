#!/usr/bin/env python3
"""PyTorch training over slow links, with recon, with DistributedDataParallel and with torchft, both over gloo, in the
same run: four workers, each in a network namespace of its own, train ResNet-18's shapes (pytorch_train.py says what of
it is simulated) until the mean loss of the last samples falls below a target, each method by itself.

recon is set up as worker/python/README.md would have it: a server beside each worker, and the policy that METHODS name.
torchft is optional: four replica groups of one worker, and a lighthouse beside the first.
Prints a table; with --json, one JSON object as the last line. In `ratios`: times of others over recon's."""

import argparse
import collections
import contextlib
import functools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import Star  # noqa: E402

TRAIN = pathlib.Path(__file__).with_name("pytorch_train.py")
# Samples that a loss is the mean of.
WINDOW = 1024
SPLIT = 160
FP16 = {"codec": "fp16", "pull_codec": "fp16"}


def recon(sync, optimizer_on="server", **settings):
    job = {"sync": sync, "split_samples": SPLIT, **settings.pop("job", {})}
    if sync.startswith(("local", "diloco")):
        del job["split_samples"]
    return {"mode": "recon", "settings": {"job_settings": job, "optimizer_on": optimizer_on, **FP16, **settings}}


# What each method is, with a learning rate at which it learns; no grid was searched. With asp and momentum that is a lower
# one.
METHODS = {
    "DDP": {"mode": "ddp", "lr": 0.02},
    "DDP, fp16 hook": {"mode": "ddp-fp16", "lr": 0.02},
    "DDP, PowerSGD hook": {"mode": "ddp-powersgd", "lr": 0.02},
    "torchft, LocalSGD of 8 steps": {"mode": "torchft-local", "settings": {"sync_every": 8}, "lr": 0.02},
    "torchft, DiLoCo of 8 steps": {"mode": "torchft-diloco", "settings": {"sync_every": 8}, "lr": 0.02},
    "recon, bsp": {**recon("bsp"), "lr": 0.02},
    "recon, bsp, workers step": {**recon("bsp", "workers"), "lr": 0.02},
    "recon, bsp, workers step, topk:0.1": {**recon("bsp", "workers", codec="topk:0.1"), "lr": 0.02},
    "recon, bsp without overlap": {**recon("bsp", overlap=False), "lr": 0.02},
    "recon, asp": {**recon("asp"), "lr": 0.005},
    "recon, local:4": {**recon("local:4", job={"local_steps_by_speed": True}), "lr": 0.02},
    "recon, local:8": {**recon("local:8", job={"local_steps_by_speed": True}), "lr": 0.02},
    "recon, local:16": {**recon("local:16", job={"local_steps_by_speed": True}), "lr": 0.02},
    "recon, local:16 in 4 fragments": {**recon("local:16", job={"fragments": 4}), "lr": 0.02},
    "recon, diloco:16": {**recon("diloco:16"), "lr": 0.02},
    "recon, bsp, quorum 3": {**recon("bsp", job={"quorum": 3}), "lr": 0.02},
    "recon, bsp, quorum 3 at once, topk:0.1": {**recon("bsp", job={"quorum": 3, "grace": "20ms"}, codec="topk:0.1"),
                                               "lr": 0.02},
    "recon, bsp, topk:0.1": {**recon("bsp", codec="topk:0.1"), "lr": 0.02},
    "recon, bsp, topk:0.02": {**recon("bsp", codec="topk:0.02"), "lr": 0.02},
}


class Losses:
    """What the workers' logs say, read as they grow."""

    def __init__(self, paths):
        self.files = {path: None for path in paths}
        self.rows = []

    def read(self):
        for path in self.files:
            if self.files[path] is None and path.exists():
                self.files[path] = open(path)
            file = self.files[path]
            while file is not None:
                at = file.tell()
                line = file.readline()
                if not line.endswith("\n"):
                    file.seek(at)
                    break
                self.rows.append(tuple(json.loads(line)))
        return bool(self.rows)

    def time_to(self, target):
        """Seconds from the first step to when the mean of the last samples' losses is below `target`; None if it is not."""
        window, samples, total = collections.deque(), 0, 0.0
        rows = sorted(self.rows)
        for when, loss, count, *_ in rows:
            window.append((loss, count))
            samples, total = samples + count, total + loss * count
            while samples - window[0][1] >= WINDOW:
                old, gone = window.popleft()
                samples, total = samples - gone, total - old * gone
            if samples >= WINDOW and total / samples < target:
                return when - rows[0][0]
        return None

    def rate(self):
        """Samples a second, between the first step and the last."""
        rows = sorted(self.rows)
        span = rows[-1][0] - rows[0][0] if len(rows) > 1 else 0
        return sum(row[2] for row in rows[1:]) / span if span else 0.0


class Run:
    """One method's workers on their links. Everything that it starts ends with it."""

    def __init__(self, options, mbit, slow=1.0):
        self.options = options
        self.slow = slow
        self.star = Star(options.workers, mbit, offloads=True)
        self.directory = tempfile.TemporaryDirectory(prefix="recon-bench-")
        self.path = pathlib.Path(self.directory.name)
        self.logs = [self.path / f"loss{index}" for index in range(options.workers)]
        self.processes = []

    def __enter__(self):
        self.star.__enter__()
        return self

    def __exit__(self, *unused):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.star.__exit__()
        self.directory.cleanup()

    def train(self, index, method, *flags, launcher=(), checkpoint=None, **environment):
        options = self.options
        compute = options.compute * (self.slow if index == options.workers - 1 else 1)
        settings = dict(method.get("settings", {}))
        if method["mode"] == "recon":
            settings.update(server=self.head, name=f"w{index}", insecure=True)
        if checkpoint:
            flags = (*flags, "--checkpoint", checkpoint)
        return self.spawn(f"worker{index}", [
            *self.star.prefix("worker", index), "env", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=link0",
            f"PYTHONPATH={options.bin.parent / 'python'}", *(f"{name}={value}" for name, value in environment.items()),
            options.python, *launcher, TRAIN, "--mode", method["mode"], "--losses", self.logs[index], "--compute", compute,
            "--batch", options.batch, "--lr", options.lr or method["lr"], "--momentum", options.momentum,
            "--settings", json.dumps(settings), *flags])

    def spawn(self, name, command):
        with open(self.path / f"{name}.log", "ab") as log:
            self.processes.append(subprocess.Popen([str(part) for part in command], stdout=log, stderr=log))
        return self.processes[-1]

    def fail(self, why):
        for log in sorted(self.path.glob("*.log")):
            print("---", log.name, "\n" + "".join(open(log, errors="replace").readlines()[-15:]))
        raise SystemExit(f"bench: {why}")

    def start(self, method):
        """The workers of a method, each a process by itself."""
        torchft = method["mode"].startswith("torchft")
        if method["mode"] == "recon":
            self.servers()
        elif torchft:
            self.lighthouse()
        for rank in range(self.options.workers):
            # Of torchft's replica groups each has a master.
            self.train(rank, method, RANK=rank, WORLD_SIZE=self.options.workers, MASTER_PORT=29500,
                       MASTER_ADDR=self.star.worker_address(rank if torchft else 0),
                       TORCHFT_LIGHTHOUSE=f"http://{self.star.worker_address(0)}:29510")

    def start_restarting(self, method):
        """Each under what starts it again: torchrun, with a checkpoint every 10 s, or recon run."""
        if method["mode"] == "recon":
            self.servers()
            launcher = ["-m", "recon", "run", "--workers", 1, "--server", self.head, "--restarts", 1000, "--"]
        else:
            launcher = ["-m", "torch.distributed.run", "--nnodes", self.options.workers, "--nproc-per-node", 1,
                        "--max-restarts", 1000, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                        f"{self.star.worker_address(0)}:29400", "--rdzv-id", "bench"]
        for index in range(self.options.workers):
            local = [] if method["mode"] == "recon" else [
                "--local-addr", self.star.worker_address(index), "--rdzv-conf", f"is_host={int(index == 0)}"]
            self.train(index, method, launcher=[*launcher, *local],
                       checkpoint=None if method["mode"] == "recon" else self.path / "checkpoint")

    def servers(self):
        """recon's, one beside each worker."""
        binaries, count = self.options.bin, self.options.workers
        common = ["--insecure", "--apply-threads", 1]
        self.head = f"{self.star.worker_address(0)}:7070"
        self.spawn("server0", [*self.star.prefix("worker", 0), binaries / "recon-server", "--listen", self.head, "--data",
                               self.path / "data0", "--servers", count, "--workers-min", count, *common])
        self.wait(lambda: (self.path / "data0/ADDRESS").exists(), 60)
        for index in range(1, count):
            self.spawn(f"server{index}", [*self.star.prefix("worker", index), binaries / "recon-server", "--join", self.head,
                                          "--listen", f"{self.star.worker_address(index)}:7070", "--data",
                                          self.path / f"data{index}", *common])

    def lighthouse(self):
        """torchft's, which pip puts beside Python. Each exchange waits for all workers."""
        program = pathlib.Path(self.options.python).with_name("torchft_lighthouse")
        self.spawn("lighthouse", [*self.star.prefix("worker", 0), program, "--min_replicas", self.options.workers])

    def samples_completed(self):
        done = subprocess.run([str(part) for part in [*self.star.prefix("worker", 0), self.options.bin / "reconctl", "status",
                                                      "--server", self.head, "--json", "--insecure"]],
                              capture_output=True, text=True, check=True)
        return int(json.loads(done.stdout)["samples_completed"])

    def wait(self, condition, seconds):
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            failed = [p for p in self.processes if p.poll() not in (None, 0)]
            if failed:
                self.fail(f"a process ended with {failed[0].returncode}")
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)

    def until(self, target, seconds):
        """Time to the target, or None if it was not reached, and samples a second."""
        losses = Losses(self.logs)
        self.wait(losses.read, 120)

        def reached():
            losses.read()
            return losses.time_to(target)
        return self.wait(reached, seconds), losses.rate()

    def useful_samples(self, method, seconds, kill_every):
        """Samples a second that are part of the model after `seconds` in which workers are killed in turn."""
        losses = Losses(self.logs)
        self.wait(lambda: losses.read() and len({row[4] for row in losses.rows}) == self.options.workers, 180)
        began = time.monotonic()
        first = self.samples_completed() if method["mode"] == "recon" else max(row[3] for row in losses.rows)
        kills = turns = 0
        while time.monotonic() - began < seconds:
            self.wait(lambda: time.monotonic() - began >= min(seconds, (turns + 1) * kill_every), seconds)
            if time.monotonic() - began >= seconds:
                break
            with open(self.logs[turns % self.options.workers]) as log, contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(log.read().splitlines()[-1])[4], signal.SIGKILL)
                kills += 1  # Or it has not trained since the last one.
            turns += 1
        losses.read()
        if method["mode"] == "recon":
            useful = self.samples_completed() - first
        else:
            useful = (max(row[3] for row in losses.rows) - first) * self.options.batch * self.options.workers
        return useful / (time.monotonic() - began), kills


@functools.cache
def has_torchft(python):
    """One line says that there is none."""
    done = subprocess.run([python, "-c", "import torchft.local_sgd"], capture_output=True, text=True)
    if done.returncode != 0:
        why = "".join(done.stderr.strip().splitlines()[-1:])
        print(f"bench: torchft is skipped, tools/torch_environment.py --bench build/python installs it ({why})", flush=True)
    return done.returncode == 0


class Bench:
    def __init__(self, options):
        self.options = options
        self.result = {"workers": options.workers, "compute_seconds": options.compute, "compute": "simulated",
                       "batch": options.batch, "target_loss": options.target, "limit_seconds": options.limit, "runs": {},
                       "ratios": {}}

    def time_to_loss(self, scene, name, mbit, slow=1.0):
        with Run(self.options, mbit, slow) as run:
            run.start(METHODS[name])
            seconds, rate = run.until(self.options.target, self.options.limit)
        shown = f"{seconds:.1f} s" if seconds else f"not in {self.options.limit} s"
        self.note(scene, name, {"seconds": seconds, "samples_per_second": rate}, f"{shown}, {rate:.0f} samples/s")
        # What was not reached took longer than the limit.
        return seconds or self.options.limit

    def note(self, scene, name, values, shown):
        self.result["runs"].setdefault(scene, {})[name] = values
        print(f"{scene}: {name}: {shown}", flush=True)

    def links(self):
        for label, mbit, ours in (("1g", 1000, self.options.at_1g), ("100m", 100, self.options.at_100m)):
            scene = f"{mbit} Mbit/s"
            hooks = {name: self.time_to_loss(scene, name, mbit) for name in METHODS if name.startswith("DDP")}
            torchft = [self.time_to_loss(scene, name, mbit) for name in METHODS
                       if name.startswith("torchft") and has_torchft(self.options.python)]
            recon_seconds = self.time_to_loss(scene, ours, mbit)
            plain = hooks.pop("DDP")
            self.result["ratios"][f"time_to_loss_vs_ddp_{label}"] = plain / recon_seconds
            self.result["ratios"][f"time_to_loss_vs_best_hook_{label}"] = min(hooks.values()) / recon_seconds
            if torchft:
                self.result["ratios"][f"time_to_loss_vs_torchft_{label}"] = min(torchft) / recon_seconds

    def straggler(self):
        scene = "1000 Mbit/s, one worker 4 times slower"
        plain = self.time_to_loss(scene, "DDP", 1000, slow=4)
        self.result["ratios"]["time_to_loss_vs_ddp_straggler"] = plain / self.time_to_loss(
            scene, self.options.with_straggler, 1000, slow=4)

    def kills(self):
        scene = "1000 Mbit/s, a worker killed every 30 s"
        rates = []
        for name in ("DDP", self.options.at_1g):
            with Run(self.options, 1000) as run:
                run.start_restarting(METHODS[name])
                rate, kills = run.useful_samples(METHODS[name], 150, 30)
            rates.append(rate)
            self.note(scene, name, {"useful_samples_per_second": rate, "kills": kills},
                      f"{rate:.0f} useful samples/s, {kills} kills")
        self.result["ratios"]["samples_vs_ddp_under_kills"] = rates[1] / rates[0]

    def overlap(self):
        scene = "1000 Mbit/s, bsp"
        rates = {}
        for name in ("recon, bsp", "recon, bsp without overlap"):
            with Run(self.options, 1000) as run:
                run.start(METHODS[name])
                _, rates[name] = run.until(0, 45)
            self.note(scene, name, {"samples_per_second": rates[name]}, f"{rates[name]:.0f} samples/s")
        self.result["ratios"]["overlap_gain_bsp"] = rates["recon, bsp"] / rates["recon, bsp without overlap"]

    def alone(self):
        """One worker over loopback with real computing, beside the plain loop, in turn: what a step costs beside its
        computing is of the model's size, whatever the images'."""
        for side, steps in ((28, 40), (56, 24)):
            rates = {"plain": [], "recon, asp": []}
            for _ in range(self.options.rounds):
                for name, seen in rates.items():
                    seen.append(self.one_worker(name, side, steps))
            for name, seen in rates.items():
                rates[name] = statistics.median(seen)
                self.note(f"alone, {side} x {side} pixels, batches of 128, real computing", name,
                          {"samples_per_second": seen}, f"{rates[name]:.1f} samples/s")
            label = "alone_vs_plain" if side == 28 else f"alone_vs_plain_{side}px"
            self.result["ratios"][label] = rates["recon, asp"] / rates["plain"]

    def one_worker(self, name, side, steps):
        options = self.options
        with LocalJob(options.bin) as job:
            settings = {}
            if name != "plain":
                job.start_server()
                settings = {**METHODS[name]["settings"], "server": job.address, "job_settings": {"sync": "asp"}}
            log = job.path / "loss0"
            process = job.spawn("worker", 0, [
                "env", f"PYTHONPATH={options.bin.parent / 'python'}", options.python, TRAIN, "--mode",
                "plain" if name == "plain" else "recon", "--losses", log, "--batch", 128, "--side", side, "--threads",
                os.cpu_count(), "--steps", steps, "--samples", 8000, "--settings", json.dumps(settings)])
            job.wait(lambda: process.poll() == 0, 600)
            losses = Losses([log])
            losses.read()
            losses.rows = losses.rows[8:]  # The first ones fill caches and pools, and overlap begins.
            return losses.rate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--python", default=ROOT / "build/python/bin/python", help="one that has torch")
    parser.add_argument("--workers", default=4, type=int)
    parser.add_argument("--compute", default=0.4, type=float, help="simulated seconds of a step")
    parser.add_argument("--batch", default=16, type=int, help="of each worker")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--lr", type=float, help="another learning rate than each method's own")
    parser.add_argument("--target", default=1.0, type=float, help="mean loss to be reached")
    parser.add_argument("--limit", default=300, type=int, help="seconds for one method: what takes longer counts as that")
    parser.add_argument("--rounds", default=3, type=int, help="of one worker alone")
    parser.add_argument("--at-1g", default="recon, bsp, topk:0.1", choices=METHODS, help="recon's method at 1 Gbit/s")
    parser.add_argument("--with-straggler", default="recon, bsp, quorum 3 at once, topk:0.1", choices=METHODS, help="with a slow worker")
    parser.add_argument("--at-100m", default="recon, bsp, topk:0.02", choices=METHODS, help="and at 100 Mbit/s")
    parser.add_argument("--only", nargs="*", choices=["links", "straggler", "kills", "overlap", "alone"],
                        help="some of the measurements")
    parser.add_argument("--try", dest="trial", nargs=2, metavar=("METHOD", "MBIT"), help="one method, and its losses")
    parser.add_argument("--slow", type=float, default=1, help="with --try: one worker takes so many times as long")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    bench = Bench(options)
    if options.trial:
        return trial(bench, *options.trial)
    for part in options.only or ["alone", "overlap", "straggler", "kills", "links"]:
        getattr(bench, part)()
    for name, ratio in bench.result["ratios"].items():
        print(f"{name}: {ratio:.2f}")
    if options.json:
        print(json.dumps(bench.result))


def trial(bench, name, mbit):
    if name.startswith("torchft") and not has_torchft(bench.options.python):
        return
    with Run(bench.options, int(mbit), bench.options.slow) as run:
        run.start(METHODS[name])
        print(name, *run.until(bench.options.target, bench.options.limit))
        for process in run.processes:
            times = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            print("cpu seconds:", int(times[11]) / 100, int(times[12]) / 100, process.args[5:8])
        losses = Losses(run.logs)
        losses.read()
        rows = sorted(losses.rows)
        for at in range(0, len(rows), 64):
            print(f"{rows[at][0] - rows[0][0]:.1f} s: {statistics.mean(row[1] for row in rows[at:at + 64]):.3f}")


if __name__ == "__main__":
    main()
