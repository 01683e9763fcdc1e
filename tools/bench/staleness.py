#!/usr/bin/env python3
"""What staleness costs in accuracy, and what corrections of it save: an MLP on Fashion-MNIST, plain SGD, asynchronous, with
eight workers, beside one worker alone with the same seeds and the same rate. `accuracy_lost` is the points below the worker
alone. In `ratios`: what is lost with a correction, of what is lost without. Prints progress; with --json, one JSON object as
the last line."""

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402

TRAIN_SAMPLES = 60000
CORRECTIONS = ["none", "inverse", "gap-aware", "dc-asgd"]
# One of them has to save half of what is lost.
BAR = 0.5


def run(options, workers, correction, seed):
    """Final accuracy in percent, and the staleness that gradients had on average."""
    updates = options.data_epochs * TRAIN_SAMPLES // options.batch
    with LocalJob(options.bin) as job:
        job.start_server("--sync", "asp", "--staleness-correction", correction, "--workers-min", workers, "--data-epochs",
                         options.data_epochs, "--batch", options.batch, "--seed", seed, "--optimizer", "sgd",
                         "--learning-rate", options.learning_rate, "--schedule", f"cosine:{updates}", "--warmup-updates",
                         updates // 20, "--split-samples", 1200, "--snapshot-interval", "1h")
        for index in range(workers):
            # Alone, a worker computes from what it has pushed last.
            job.start_worker(index, "--model", options.model, "--codec", "fp32", "--pull-codec", "fp32",
                             *(["--depth", 1] if workers == 1 else []))
        status = job.finish(options.timeout)
    pushes = sum(int(member.get("pushes", 0)) for member in status["members"])
    staleness = sum(int(member.get("pushes", 0)) * member.get("staleness_mean", 0) for member in status["members"])
    return 100 * status["evaluations"][-1]["accuracy"], staleness / pushes if pushes else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--workers", default=8, type=int)
    parser.add_argument("--model", default="mlp:784-128-10")
    parser.add_argument("--data-epochs", default=3, type=int)
    parser.add_argument("--batch", default=64, type=int)
    parser.add_argument("--learning-rate", default=0.1, type=float)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--corrections", default=",".join(CORRECTIONS), help="comma-separated")
    parser.add_argument("--timeout", default=600, type=int, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    result = {"bench": "staleness", "data": "Fashion-MNIST", "model": options.model, "workers": options.workers,
              "optimizer": "sgd", "learning_rate": options.learning_rate, "batch": options.batch,
              "data_epochs": options.data_epochs, "seeds": seeds, "accuracy": {}, "staleness_mean": {}, "accuracy_lost": {},
              "ratios": {}}
    rows = [("one worker", 1, "none")] + [(name, options.workers, name) for name in options.corrections.split(",")]
    for name, workers, correction in rows:
        runs = [run(options, workers, correction, seed) for seed in seeds]
        accuracy = result["accuracy"][name] = [round(reached, 2) for reached, _ in runs]
        # Of runs whose end was seen before the last worker had left.
        known = [stale for _, stale in runs if stale is not None]
        result["staleness_mean"][name] = round(statistics.mean(known), 2) if known else None
        line = f"{name:12} staleness {result['staleness_mean'][name]}   {'  '.join(f'{a:.2f}' for a in accuracy)} %"
        if workers > 1:
            lost = statistics.mean(result["accuracy"]["one worker"]) - statistics.mean(accuracy)
            result["accuracy_lost"][name] = round(lost, 3)
            line += f"   {lost:+.2f} points lost"
        print(line, flush=True)
    lost = result["accuracy_lost"]
    for name in lost:
        if name != "none" and lost.get("none", 0) > 0:
            result["ratios"][f"{name}_lost_of_none"] = round(lost[name] / lost["none"], 3)
    best = min(result["ratios"].values(), default=None)
    result["bars_hold"] = best is not None and best <= BAR
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in result["ratios"].items()))
    if options.json:
        print(json.dumps(result))
    return 0 if result["bars_hold"] else 1


if __name__ == "__main__":
    sys.exit(main())
