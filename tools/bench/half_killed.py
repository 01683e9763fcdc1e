#!/usr/bin/env python3
"""Half of 8 synchronous workers are killed in mid-run: does the loss curve stay? An MLP on Fashion-MNIST, sgd with
momentum, the loss of the test data after each data epoch. Three rows of several seeds each: nobody is killed, and four
are, with and without --step-samples constant. Prints a table; with --json, one JSON object as the last line."""

import argparse
import json
import os
import pathlib
import signal
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402

WORKERS = 8
TRAIN_SAMPLES = 60000
ROWS = {
    "undisturbed": (False, []),
    "half killed, constant": (True, ["--step-samples", "constant"]),
    "half killed": (True, []),
}


def curve(options, kill, flags, seed):
    """The loss after each data epoch, and how many steps were made."""
    with LocalJob(options.bin) as job:
        job.start_server("--sync", "bsp", "--workers-min", WORKERS, "--data-epochs", options.data_epochs, "--batch",
                         options.batch, "--seed", seed, "--optimizer", "momentum", "--learning-rate",
                         options.learning_rate, "--split-samples", 20 * options.batch, "--snapshot-interval", "1h", *flags)
        workers = [job.start_worker(index, "--model", options.model, "--codec", "fp32") for index in range(WORKERS)]

        def come_to(samples):
            status = job.status()
            return status and float(status.get("samples_completed", 0)) >= samples
        if kill:
            job.wait(lambda: come_to(options.kill_after * TRAIN_SAMPLES), options.timeout)
            for worker in workers[::2]:
                os.kill(worker.pid, signal.SIGKILL)
                worker.wait()
                job.processes.remove(worker)
        status = job.finish(options.timeout)
    return [entry["loss"] for entry in status["evaluations"]], int(status["frontier_step"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--model", default="mlp:784-64-10")
    parser.add_argument("--data-epochs", default=8, type=int)
    parser.add_argument("--kill-after", default=2, type=float, help="data epochs")
    parser.add_argument("--batch", default=32, type=int)
    parser.add_argument("--learning-rate", default=0.05, type=float)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated, at least two")
    parser.add_argument("--timeout", default=600, type=int, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if len(seeds) < 2:
        parser.error("--seeds: two at least: the noise is what lies between them")
    rows = {}
    for name, (kill, flags) in ROWS.items():
        runs = [curve(options, kill, flags, seed) for seed in seeds]
        rows[name] = {"losses": [losses for losses, _ in runs], "steps": [steps for _, steps in runs]}
        means = [statistics.mean(at) for at in zip(*rows[name]["losses"])]
        print(f"{name:24} {'  '.join(f'{loss:.4f}' for loss in means)}   steps {rows[name]['steps']}", flush=True)
    undisturbed = list(zip(*rows["undisturbed"]["losses"]))
    # How far two seeds are apart, at the epoch where they are farthest; and a row's mean from the undisturbed one's.
    noise = max(max(at) - min(at) for at in undisturbed)
    apart = {name: max(abs(statistics.mean(a) - statistics.mean(b))
                       for a, b in zip(zip(*row["losses"]), undisturbed))
             for name, row in rows.items() if name != "undisturbed"}
    print(f"two seeds are up to {noise:.4f} apart; " + "; ".join(f"{n}: {a:.4f}" for n, a in apart.items()))
    result = {"bench": "half_killed", "data": "Fashion-MNIST", "workers": WORKERS, "batch": options.batch,
              "data_epochs": options.data_epochs, "seeds": seeds, "rows": rows, "noise": noise, "apart": apart,
              "holds": apart["half killed, constant"] <= noise}
    if options.json:
        print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
