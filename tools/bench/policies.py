#!/usr/bin/env python3
"""How policies compare: four workers in network namespaces with limited links and computers of different speed, an MLP
on Fashion-MNIST trained for some data epochs, each policy in turn, with several seeds. Gradients are computed for real;
that a worker is slower than another is simulated (--slow-factor, --step-ms), and stated. A single process has one fast worker, and its
link as good as none. Needs root. Prints a table; with --json,
one JSON object as the last line. In `ratios`: throughput and time to accuracy against BSP with FP32. A synchronous step
is one update for the batches of all, by their mean: it gets as many times the learning rate. Local steps get the rate
as it is."""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import SERVER_ADDRESS, Star  # noqa: E402

TRAIN_SAMPLES = 60000
FP32 = ["--codec", "fp32", "--pull-codec", "fp32"]
FP16 = ["--codec", "fp16", "--pull-codec", "fp16"]
TOPK = ["--codec", "topk:0.01", "--pull-codec", "fp16", "--sparsity-warmup", 1]
AUTO = ["--codec", "auto"]
# Name: policy flags of the server, flags of the workers.
ROWS = {
    "single process": (["--sync", "asp"], FP32),
    "bsp": (["--sync", "bsp"], FP32),
    "ssp:2": (["--sync", "ssp:2"], FP32),
    "asp": (["--sync", "asp"], FP32),
    "asp gap-aware": (["--sync", "asp", "--staleness-correction", "gap-aware"], FP32),
    "asp fp16": (["--sync", "asp"], FP16),
    "asp topk": (["--sync", "asp"], TOPK),
    "local:16": (["--sync", "local:16"], FP32),
    "diloco:16": (["--sync", "diloco:16"], FP32),
    "auto": (["--sync", "auto"], AUTO),
}
# Local steps all together and in fragments, where computing them and pushing them take about as long: simulated, so
# that the workers do not take each other's cores.
SIMULATED_STEP_MS = 60
THROUGHPUT_ROWS = {
    "local:16 in fragments": (["--sync", "local:16", "--fragments", "4"], FP32),
    "local:16 by speed": (["--sync", "local:16", "--local-steps-by-speed"], FP32),
}
# How many times slower than the machine the workers are.
SPEEDS = [1, 1, 1.5, 2]
# One four times slower than the others. A step of theirs takes so long: few cores hold them all, and computing, not the
# link, is what takes the time; and it is the same for all policies, whatever else the machine does.
STRAGGLER = [1, 1, 1, 4]
STRAGGLER_STEP_MS = 60
STRAGGLER_ROWS = ["bsp", "ssp:2", "asp", "asp fp16", "asp topk", "auto"]
# Throughputs are medians of so many runs, one policy after the other in each round.
ROUNDS = 3
# What auto has chosen is measured when it has chosen: at the latest after so long.
AUTO_SETTLES = 120


def run(options, row, seed, mbit, speeds, data_epochs, seconds=None, step_ms=0, simulated=None):
    """One job: samples a second, bytes a sample, and (time since the first lease was completed, accuracy) of each evaluation.
    With `seconds` only throughput, over about so long. `step_ms`: what a step of the fastest takes at least. `simulated`: a
    file with the shapes of a model whose computing is nothing but that."""
    policy, codec = {**ROWS, **THROUGHPUT_ROWS}[row]
    if row == "single process":
        speeds, mbit = speeds[:1], options.fast_mbit
    together = len(speeds) if row == "bsp" else 1
    rate = options.learning_rate * together
    updates = data_epochs * TRAIN_SAMPLES // (options.batch * together)
    with Star(len(speeds), mbit) as star, LocalJob(options.bin, star.prefix, f"{SERVER_ADDRESS}:7070") as job:
        job.start_server("--insecure", *policy, "--workers-min", len(speeds), "--data-epochs", data_epochs, "--batch",
                         options.batch, "--seed", seed, "--optimizer", "sgd", "--learning-rate", rate,
                         "--schedule", f"cosine:{updates}", "--warmup-updates", updates // 20 if seconds is None else 0,
                         "--split-samples", (128 if simulated else 16) * options.batch,
                         "--snapshot-interval", "1h")
        for index, slower in enumerate(speeds):
            model = f"synthetic:{simulated}" if simulated else options.model
            job.start_worker(index, "--insecure", "--model", model, "--step-ms", step_ms, "--slow-factor", slower, *codec)
        def completed():
            return int((job.status() or {}).get("samples_completed", 0))

        def next_completion():
            before = completed()
            return job.wait(lambda: completed() if completed() > before else None, 120), time.time()

        # From one completion to another: leases of synchronous workers come to an end together.
        before, begin = next_completion()
        if seconds is not None:
            if row == "auto":
                for unused in range(2):  # The policy comes first, and the codecs are tried anew with it.
                    time.sleep(5)
                    chosen = job.wait(lambda: (s := job.status()) and s.get("codec_settled") and s, AUTO_SETTLES)
                before, begin = next_completion()
                print(f"auto has chosen {chosen['job']['policy']['sync']} ({chosen['policy_reason']}), codec "
                      f"{chosen['codec_choice']['push']}", flush=True)
            time.sleep(seconds)
            done, end = next_completion()
            return {"samples_per_s": (done - before) / (end - begin)}
        status = job.finish(options.timeout)
        end = int(status["evaluations"][-1]["unix_ms"]) / 1000
        sent = sum(sum(star.counters(index)) for index in range(len(speeds)))
        return {
            "samples_per_s": (data_epochs * TRAIN_SAMPLES - before) / (end - begin),
            "bytes_per_sample": sent / (data_epochs * TRAIN_SAMPLES),
            "evaluations": [(int(e["unix_ms"]) / 1000 - begin, 100 * e["accuracy"]) for e in status["evaluations"]],
        }


def seconds_to(accuracy, evaluations):
    """When it got there, between two evaluations by a straight line; None if it never did."""
    previous = None
    for at, reached in evaluations:
        if reached >= accuracy:
            if previous is None:
                return at
            share = (accuracy - previous[1]) / (reached - previous[1])
            return previous[0] + share * (at - previous[0])
        previous = (at, reached)
    return None


def mean(values):
    return None if any(value is None for value in values) else statistics.mean(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--rows", default=";".join(ROWS), help="semicolon-separated")
    parser.add_argument("--model", default="mlp:784-128-10")
    parser.add_argument("--mbit", default=100, type=int, help="of each worker's link, in each direction")
    parser.add_argument("--fast-mbit", default=1000, type=int, help="of those on which one worker is four times slower")
    parser.add_argument("--slow-mbit", default=50, type=int, help="of those on which local:16 and bsp are compared")
    parser.add_argument("--data-epochs", default=6, type=int)
    parser.add_argument("--accuracy", default=85.5, type=float, help="percent, for the time to it")
    parser.add_argument("--batch", default=64, type=int)
    parser.add_argument("--learning-rate", default=0.03, type=float)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--seconds", default=20.0, type=float, help="of the runs that only measure throughput")
    parser.add_argument("--timeout", default=900, type=int, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rows = options.rows.split(";")
    for row in rows:
        if row not in ROWS:
            parser.error(f"--rows: no row {row}; there are {'; '.join(ROWS)}")
    result = {"bench": "policies", "data": "Fashion-MNIST", "model": options.model, "link_mbit": options.mbit,
              "slower_by_simulated": SPEEDS, "accuracy": options.accuracy, "seeds": seeds,
              "data_epochs": options.data_epochs, "batch": options.batch, "rows": {}, "throughput": {}, "ratios": {}}
    print(f"{len(SPEEDS)} workers, links of {options.mbit} Mbit/s, computing slower by {SPEEDS} (simulated)")
    for row in rows:
        runs = [run(options, row, seed, options.mbit, SPEEDS, options.data_epochs) for seed in seeds]
        result["rows"][row] = {
            "samples_per_s": statistics.mean(r["samples_per_s"] for r in runs),
            "bytes_per_sample": statistics.mean(r["bytes_per_sample"] for r in runs),
            "seconds_to_accuracy": mean([seconds_to(options.accuracy, r["evaluations"]) for r in runs]),
            "final_accuracy": [round(r["evaluations"][-1][1], 2) for r in runs],
            "evaluations": runs[0]["evaluations"],
        }
        out = result["rows"][row]
        took = out["seconds_to_accuracy"]
        print(f"{row:18} {out['samples_per_s']:9.0f} samples/s  {out['bytes_per_sample']:7.0f} B/sample  "
              f"{'never' if took is None else f'{took:.1f} s'} to {options.accuracy} %   final "
              f"{statistics.mean(out['final_accuracy']):.2f} %", flush=True)
    shapes = tempfile.NamedTemporaryFile("w", suffix=".shapes")
    print("layers.weight 2048 1024", file=shapes, flush=True)
    for where, simulated, step_ms, mbit, speeds, compared in (
            ("straggler", None, STRAGGLER_STEP_MS, options.fast_mbit, STRAGGLER, STRAGGLER_ROWS),
            ("by_speed", None, STRAGGLER_STEP_MS, options.fast_mbit, STRAGGLER, ["local:16", "local:16 by speed"]),
            ("slow_link", None, 0, options.slow_mbit, SPEEDS, ["bsp", "local:16"]),
            ("fragments", shapes.name, SIMULATED_STEP_MS, options.mbit, [1, 1, 1, 1],
             ["local:16", "local:16 in fragments"])):
        print(f"{'2 M parameters, not computed' if simulated else options.model}, links of {mbit} Mbit/s, computing slower by "
              f"{speeds}{f', a step of {step_ms} ms' if step_ms else ''} (simulated)")
        through = result["throughput"][where] = {}
        runs = {row: [] for row in compared}
        for unused in range(ROUNDS):
            for row in compared:
                runs[row].append(run(options, row, seeds[0], mbit, speeds, 100000, options.seconds, step_ms,
                                     simulated)["samples_per_s"])
        for row in compared:
            through[row] = statistics.median(runs[row])
            print(f"{row:18} {through[row]:9.0f} samples/s, of {[round(r) for r in runs[row]]}", flush=True)
    ratios = result["ratios"]
    straggler = result["throughput"]["straggler"]
    ratios["asp_with_straggler"] = straggler["asp"] / straggler["bsp"]
    ratios["auto_of_best"] = straggler["auto"] / max(straggler.values())
    by_speed = result["throughput"]["by_speed"]
    ratios["local_steps_by_speed"] = by_speed["local:16 by speed"] / by_speed["local:16"]
    slow_link = result["throughput"]["slow_link"]
    ratios["local16_slow_link"] = slow_link["local:16"] / slow_link["bsp"]
    parts = result["throughput"]["fragments"]
    ratios["fragments"] = parts["local:16 in fragments"] / parts["local:16"]
    base = result["rows"].get("bsp")
    for name, row in (("asp", "asp"), ("asp_compressed", "asp topk")):
        other = result["rows"].get(row)
        if base is None or other is None:
            continue
        ratios[f"{name}_throughput"] = other["samples_per_s"] / base["samples_per_s"]
        if base["seconds_to_accuracy"] is not None and other["seconds_to_accuracy"] is not None:
            ratios[f"{name}_time_to_accuracy"] = base["seconds_to_accuracy"] / other["seconds_to_accuracy"]
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
