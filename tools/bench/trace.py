#!/usr/bin/env python3
"""What a trace costs training: the push rate of a job of two workers while `reconctl trace` records it, beside the same job
when nothing is recorded, in turn.

Usage: trace.py [--bin FOLDER] [--before FOLDER] [--rounds 5] [--seconds 10] [--model resnet50] [--transport auto] [--json].
With --before, the programs of another build (one without traces, say) run the same job in turn, too. Prints medians of pushes a
second and of the CPU time that a push costs all processes, and the medians of their ratios, round by round. Computing is
simulated, so that nothing else takes time."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from local_job import ROOT, LocalJob


def cpu_seconds(job: LocalJob) -> float:
    """Of all processes of the job."""
    ticks = 0
    for process in job.processes:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Measured:
    """A job that goes on, and what it does in some seconds."""

    def __init__(self, options: argparse.Namespace, binaries: pathlib.Path):
        self.options = options
        self.job = LocalJob(binaries)
        self.job.start_server("--data-epochs", 100000, "--durability", "snapshot", "--snapshot-interval", "1h")
        for i in range(2):
            self.job.start_worker(i, "--model", options.model, "--data", "clusters:4000,500,16,4", "--device", "cpu", "--codec",
                                  "fp16", "--transport", options.transport)
        self.job.wait(lambda: self.pushes() > 20, 120)

    def pushes(self) -> int:
        status = self.job.status()
        return status["pushes"] if status else 0

    def measure(self, traced: bool) -> dict[str, float]:
        trace = None
        if traced:
            # It begins a moment later, and ends later.
            trace = subprocess.Popen([self.job.bin / "reconctl", "trace", "--server", self.job.address, "--seconds",
                                      str(self.options.seconds + 1), "-o", self.job.path / "trace.json", "--json"],
                                     stdout=subprocess.PIPE)
            time.sleep(1)
        pushes, cpu, began = self.pushes(), cpu_seconds(self.job), time.monotonic()
        time.sleep(self.options.seconds)
        count, passed, used = self.pushes() - pushes, time.monotonic() - began, cpu_seconds(self.job) - cpu
        result = {"pushes_per_second": count / passed, "cpu_ms_per_push": 1000 * used / count}
        if trace is not None:
            told = json.loads(trace.communicate(timeout=120)[0])
            assert not told["lacking"] and not any(one["dropped"] for one in told["processes"]), told
            result["spans_per_second"] = told["spans"] / told["seconds"]
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--transport", default="auto", choices=["auto", "grpc"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {}
    kinds = ["off", "on"] + (["before"] if options.before else [])
    for i in range(options.rounds):
        # One job at a time, of each build: they would share the cores.
        for build in (["now", "before"] if i % 2 == 0 else ["before", "now"]) if options.before else ["now"]:
            measured = Measured(options, options.bin if build == "now" else options.before)
            with measured.job:
                of_build = ["before"] if build == "before" else ["off", "on"] if i % 2 == 0 else ["on", "off"]
                for kind in of_build:
                    rounds.setdefault(kind, []).append(measured.measure(kind == "on"))
                    print(f"round {i + 1}, {kind}: {rounds[kind][-1]}", file=sys.stderr, flush=True)
    result: dict[str, dict[str, float]] = {
        kind: {name: statistics.median(one[name] for one in rounds[kind]) for name in rounds[kind][0]} for kind in kinds}
    ratios = {}
    for above, below in [("on", "off")] + ([("off", "before")] if options.before else []):
        for name in ("pushes_per_second", "cpu_ms_per_push"):
            ratios[f"{name}_{above}_of_{below}"] = statistics.median(
                one[name] / other[name] for one, other in zip(rounds[above], rounds[below]))
    result["ratios"] = ratios
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
