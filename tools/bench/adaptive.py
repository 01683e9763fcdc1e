#!/usr/bin/env python3
"""Whether --codec auto finds the codec that a person would choose: four workers in network namespaces with links of 100
Mbit/s, then over loopback; step rates of fixed codecs and of auto in turn, and the metrics' bytes beside those the
interfaces counted. Computing is real (an MLP on Fashion-MNIST). Needs root. Prints a table; with --json, one JSON
object as the last line."""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import SERVER_ADDRESS, Star  # noqa: E402

WORKERS = 4
FIXED = {
    "fp32": ["--codec", "fp32", "--pull-codec", "fp32"],
    "fp16": ["--codec", "fp16", "--pull-codec", "fp16"],
    "topk:0.05": ["--codec", "topk:0.05", "--pull-codec", "fp16"],
    "topk:0.01": ["--codec", "topk:0.01", "--pull-codec", "fp16"],
    "topk:0.001": ["--codec", "topk:0.001", "--pull-codec", "fp16"],
}
CODECS = {**FIXED, "auto": ["--codec", "auto"]}


class ByteWatch:
    """The metrics' bytes of one worker beside its interface's: the heartbeat says when the metrics were taken, the
    interface's counters are interpolated to that time."""

    def __init__(self, star):
        self.star = star
        self.interface = []
        self.metrics = []

    def sample(self, status):
        self.interface.append((time.time(), *self.star.counters(0)))
        for member in status.get("members", []):
            if member["name"] == "w0":
                progress = member["progress"]
                at = int(progress.get("wire_unix_ms", 0)) / 1000
                self.metrics.append((at, int(progress.get("wire_sent_bytes", 0)),
                                     int(progress.get("wire_received_bytes", 0))))

    def counted(self, at, direction):
        for before, after in zip(self.interface, self.interface[1:]):
            if before[0] <= at <= after[0]:
                share = (at - before[0]) / (after[0] - before[0])
                return before[direction] + share * (after[direction] - before[direction])
        return None

    def ratios(self):
        """Bytes of the metrics over those of the interface: sent, received."""
        inside = [m for m in self.metrics if self.counted(m[0], 1) is not None]
        if len(inside) < 2:
            raise SystemExit("bench: no heartbeats while it measured")
        first, last = inside[0], inside[-1]
        return [(last[d] - first[d]) / (self.counted(last[0], d) - self.counted(first[0], d)) for d in (1, 2)]


def measure(options, mbit, codec):
    with contextlib.ExitStack() as stack:
        star = stack.enter_context(Star(WORKERS, mbit)) if mbit is not None else None
        job = stack.enter_context(LocalJob(options.bin, star.prefix, f"{SERVER_ADDRESS}:7070") if star
                                  else LocalJob(options.bin))
        job.start_server("--insecure", "--workers-min", WORKERS, "--data-epochs", 100000, "--optimizer", "sgd",
                         "--learning-rate", 0.01, "--batch", options.batch, "--snapshot-interval", "1h")
        for index in range(WORKERS):
            job.start_worker(index, "--insecure", "--model", "mlp:784-512-256-10", *CODECS[codec])
        job.wait(lambda: int((job.status() or {}).get("pushes", 0)) > 4 * WORKERS, 60)
        time.sleep(options.settle if codec == "auto" else options.settle / 5)
        watch = ByteWatch(star) if star else None
        start, before = time.monotonic(), int(job.status()["pushes"])
        while time.monotonic() < start + options.seconds:
            if watch:
                watch.sample(job.status())
            time.sleep(0.1)
        status = job.status()
        rate = (int(status["pushes"]) - before) / (time.monotonic() - start)
        chosen = sorted({member["progress"]["codec"] for member in status["members"]})
    return rate, watch.ratios() if watch else None, chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--rounds", default=3, type=int, help="medians are over these")
    parser.add_argument("--seconds", default=8.0, type=float, help="measured in each run")
    parser.add_argument("--settle", default=24.0, type=float, help="seconds before, for auto to choose; a fifth for the others")
    parser.add_argument("--batch", default=64, type=int)
    parser.add_argument("--mbit", default=100, type=int, help="of the slow links")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    result = {"bench": "adaptive", "model": "mlp:784-512-256-10", "workers": WORKERS, "batch": options.batch,
              "steps_per_s": {}, "chosen": {}, "metrics_bytes_over_interface": {}, "ratios": {}}
    worst = 0.0
    byte_ratios = {}
    for link, mbit in ((f"{options.mbit}mbit", options.mbit), ("loopback", None)):
        rates = {codec: [] for codec in CODECS}
        for _ in range(options.rounds):
            for codec in CODECS:
                rate, bytes_ratios, chosen = measure(options, mbit, codec)
                rates[codec].append(rate)
                for direction, ratio in zip(("sent", "received"), bytes_ratios or []):
                    byte_ratios.setdefault(f"{codec} {direction}", []).append(ratio)
                if codec == "auto":
                    result["chosen"][link] = chosen
        medians = {codec: statistics.median(values) for codec, values in rates.items()}
        result["steps_per_s"][link] = {codec: round(rate, 1) for codec, rate in medians.items()}
        best = max(medians[codec] for codec in FIXED)
        result["ratios"][f"auto_of_best_fixed_{link}"] = round(medians["auto"] / best, 3)
        if mbit is not None:
            result["ratios"]["auto_vs_fp32"] = round(medians["auto"] / medians["fp32"], 2)
        print(f"{link}: " + ", ".join(f"{codec} {rate:.1f}" for codec, rate in medians.items()) + " steps/s", flush=True)
        print(f"  auto chose {'; '.join(result['chosen'][link])}", flush=True)
    for name, values in byte_ratios.items():
        result["metrics_bytes_over_interface"][name] = round(statistics.median(values), 4)
        worst = max(worst, abs(statistics.median(values) - 1))
    result["ratios"]["metrics_bytes_off_by"] = round(worst, 4)
    print(f"bytes: metrics and interfaces differ by {100 * worst:.1f} % at most")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
