#!/usr/bin/env python3
"""What compression costs in accuracy: an MLP on Fashion-MNIST, four workers, asynchronous and synchronous, several
seeds, one row a codec. Prints progress and a table; with --json, one JSON object as the last line."""

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402

TRAIN_SAMPLES = 60000
WORKERS = 4
# Warm-up: the first data epoch sends more, as Lin et al. do.
CODECS = {
    "fp32": ["--codec", "fp32"],
    "fp16": ["--codec", "fp16"],
    "topk:0.01": ["--codec", "topk:0.01", "--sparsity-warmup", 1],
    "topk:0.001": ["--codec", "topk:0.001", "--sparsity-warmup", 1],
    "topk:0.01, no feedback": ["--codec", "topk:0.01", "--sparsity-warmup", 1, "--error-feedback", "off"],
}
# Percentage points below fp32 that are allowed; no feedback has to lose more than its own.
BARS = {"fp16": 0.2, "topk:0.01": 0.5, "topk:0.001": 1.0}
NO_FEEDBACK_LOSES = 1.0


def run(options, sync, codec, seed):
    # A synchronous step means one update for four batches, with their mean: four times the rate for the same path.
    batch = options.batch
    updates = options.data_epochs * TRAIN_SAMPLES // batch // (WORKERS if sync == "bsp" else 1)
    rate = options.learning_rate * (WORKERS if sync == "bsp" else 1)
    with LocalJob(options.bin) as job:
        job.start_server("--sync", sync, "--workers-min", WORKERS, "--data-epochs", options.data_epochs, "--batch", batch,
                         "--seed", seed, "--optimizer", "sgd", "--learning-rate", rate, "--schedule",
                         f"cosine:{updates}", "--warmup-updates", updates // 20, "--split-samples", 1200,
                         "--snapshot-interval", "1h")
        for index in range(WORKERS):
            job.start_worker(index, "--model", "mlp:784-512-256-10", *CODECS[codec])
        status = job.finish(options.timeout)
    return 100 * status["evaluations"][-1]["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--data-epochs", default=8, type=int)
    parser.add_argument("--batch", default=64, type=int)
    parser.add_argument("--learning-rate", default=0.05, type=float)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--sync", default="asp,bsp", help="comma-separated")
    parser.add_argument("--codecs", default=";".join(CODECS), help="semicolon-separated rows")
    parser.add_argument("--timeout", default=600, type=int, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    codecs = options.codecs.split(";")
    for codec in codecs:
        if codec not in CODECS:
            parser.error(f"--codecs: no row {codec}; there are {'; '.join(CODECS)}")
    result = {"bench": "convergence", "data": "Fashion-MNIST", "model": "mlp:784-512-256-10", "workers": WORKERS,
              "optimizer": "sgd", "learning_rate": options.learning_rate, "batch": options.batch,
              "data_epochs": options.data_epochs, "seeds": seeds, "accuracy": {}, "points_below_fp32": {}}
    bars_hold = True
    for sync in options.sync.split(","):
        rows = result["accuracy"][sync] = {}
        below = result["points_below_fp32"][sync] = {}
        for codec in codecs:
            rows[codec] = [round(run(options, sync, codec, seed), 2) for seed in seeds]
            mean = statistics.mean(rows[codec])
            line = f"{sync}  {codec:24}  {'  '.join(f'{a:.2f}' for a in rows[codec])}   mean {mean:.2f} %"
            if "fp32" in rows and codec != "fp32":
                below[codec] = round(statistics.mean(rows["fp32"]) - mean, 3)
                holds = below[codec] <= BARS[codec] if codec in BARS else below[codec] >= NO_FEEDBACK_LOSES
                bars_hold &= holds
                line += f"   {below[codec]:+.2f} points below fp32{'' if holds else '   (outside its bar)'}"
            print(line, flush=True)
    result["bars_hold"] = bars_hold
    if options.json:
        print(json.dumps(result))
    return 0 if bars_hold else 1


if __name__ == "__main__":
    sys.exit(main())
