#!/usr/bin/env python3
"""Data-parallel PyTorch while ranks are killed (SIGKILL) one after another: recon.torch.elastic, beside
DistributedDataParallel over gloo with torchrun, which starts all ranks again from a checkpoint every 50 steps. Computing is
simulated in part (--compute-ms of sleep a step). `stopped_s`: the longest time between two steps of a rank that lived
(recon), or of all (gloo). `again`: steps that were done again. Prints a table; with --json, one JSON object as the last line."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402

TRAIN = pathlib.Path(__file__).resolve().parent / "killed_ranks_train.py"
PYTHON = ROOT / "build/python/bin/python3"


def steps_of(path):
    """Each process' steps: (time, step, ranks)."""
    processes = {}
    for file in path.glob("*.steps"):
        rows = [line.split() for line in file.read_text().splitlines() if line[:1].isdigit() and line.count(" ") == 2]
        processes[int(file.stem)] = [(float(at), int(step), int(ranks)) for at, step, ranks in rows]
    return processes


def losses_of(path):
    return [float(line.split()[1]) for file in path.glob("*.steps") for line in file.read_text().splitlines()
            if line.startswith("loss ")]


class Kills:
    """Kills one process of those that train every so many seconds, until a tenth of the steps is left."""

    def __init__(self, path, options, count):
        self.path, self.every, self.left = path, options.every, count
        self.last_step = 0.9 * options.steps
        self.next = None
        self.done = 0

    def look(self, alive):
        now = time.monotonic()
        stepping = [pid for pid, rows in steps_of(self.path).items() if rows and pid in alive]
        if self.next is None and stepping:
            self.next = now + self.every
        if self.left == 0 or self.next is None or now < self.next or len(stepping) < 2:
            return
        if max(rows[-1][1] for rows in steps_of(self.path).values() if rows) > self.last_step:
            self.left = 0
            return
        self.next, self.left = now + self.every, self.left - 1
        os.kill(sorted(stepping)[self.done % len(stepping)], signal.SIGKILL)
        self.done += 1


def finish(options, path, begun, kills, alive_now, is_over):
    while not is_over():
        if time.monotonic() > begun + options.timeout:
            raise SystemExit(f"bench: no end within {options.timeout:g} s")
        kills.look(alive_now())
        time.sleep(0.1)
    if len(set(losses_of(path))) != 1:
        raise SystemExit(f"bench: ranks end with losses {losses_of(path)}")
    processes = steps_of(path)
    first = min(rows[0][0] for rows in processes.values() if rows)
    last = max(rows[-1][0] for rows in processes.values() if rows)
    return processes, {"seconds": round(last - first, 1), "loss": losses_of(path)[0], "killed": kills.done}


def command(options, backend, path):
    return [str(word) for word in (TRAIN, "--backend", backend, "--steps", options.steps, "--ranks", options.ranks,
                                   "--compute-ms", options.compute_ms, "--path", path)]


def run_recon(options, kills_max):
    environment = {**os.environ, "PYTHONPATH": str(options.bin.parent / "python")}
    with LocalJob(options.bin) as job:
        job.start_server()
        environment["RECON_SERVER"] = job.address
        ranks = []

        def start():
            ranks.append(subprocess.Popen([PYTHON, *command(options, "recon", job.path)], env=environment))

        def alive():
            for rank in [one for one in ranks if one.poll() not in (None, 0)]:
                if rank.returncode != -signal.SIGKILL:
                    raise SystemExit(f"bench: a rank ended with {rank.returncode}")
                ranks.remove(rank)
                start()
            return {rank.pid for rank in ranks if rank.poll() is None}

        for _ in range(options.ranks):
            start()
        try:
            processes, result = finish(options, job.path, time.monotonic(), Kills(job.path, options, kills_max), alive,
                                       lambda: all(rank.poll() == 0 for rank in ranks))
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        result["stopped_s"] = round(max(b[0] - a[0] for rows in processes.values() for a, b in zip(rows, rows[1:])), 2)
        result["again"] = sum(file.read_text().count("again\n") for file in job.path.glob("*.steps"))
    return result


def run_gloo(options, kills_max):
    with tempfile.TemporaryDirectory(prefix="recon-bench-") as directory:
        path = pathlib.Path(directory)
        with open(path / "torchrun.log", "w") as log:
            launcher = subprocess.Popen([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                                         str(options.ranks), "--max-restarts", "1000", *command(options, "gloo", path)],
                                        stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

        def alive():
            return {int(file.stem) for file in path.glob("*.steps") if pathlib.Path(f"/proc/{file.stem}").exists()}

        try:
            processes, result = finish(options, path, time.monotonic(), Kills(path, options, kills_max), alive,
                                       lambda: launcher.poll() is not None)
        finally:
            launcher.terminate()
            launcher.wait()
        if launcher.returncode != 0:
            raise SystemExit(f"bench: torchrun ended with {launcher.returncode}: {(path / 'torchrun.log').read_text()[-2000:]}")
    times = sorted(at for rows in processes.values() for at, _, _ in rows)
    result["stopped_s"] = round(max(b - a for a, b in zip(times, times[1:])), 2)
    # Each rank's processes go through all steps; more of them is what was done again.
    result["again"] = sum(len(rows) for rows in processes.values()) - options.ranks * options.steps
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--compute-ms", type=float, default=20)
    parser.add_argument("--every", type=float, default=20, help="seconds from kill to kill")
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for title, run, kills in (("recon, undisturbed", run_recon, 0), ("recon", run_recon, options.kills),
                              ("gloo, torchrun", run_gloo, options.kills)):
        row = rows[title] = run(options, kills)
        if len(rows) == 1:
            print(f"{'':20}" + "".join(f"{name:>12}" for name in row))
        print(f"{title:20}" + "".join(f"{value:>12}" for value in row.values()), flush=True)
    ratios = {"stopped_of_gloo": round(rows["recon"]["stopped_s"] / rows["gloo, torchrun"]["stopped_s"], 3),
              "seconds_of_gloo": round(rows["recon"]["seconds"] / rows["gloo, torchrun"]["seconds"], 3),
              "loss_of_undisturbed": round(rows["recon"]["loss"] / rows["recon, undisturbed"]["loss"], 4)}
    if options.json:
        print(json.dumps({"rows": rows, "ratios": ratios}))


if __name__ == "__main__":
    main()
