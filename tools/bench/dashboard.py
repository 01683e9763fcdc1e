#!/usr/bin/env python3
"""What the dashboard costs training: the push rate of a job of two workers with ten clients that ask as the page does, each
second, beside the same job without a dashboard, in turn.

Usage: dashboard.py [--bin FOLDER] [--rounds 5] [--seconds 15] [--clients 10] [--model resnet50] [--json]. The clients run on
this machine, too. Prints the median of the rounds' ratios of push rates (at least 0.97 is wanted), and medians of pushes a
second, of the server's CPU time for a push, and of the CPU time of the threads that are there for history and dashboard only,
in ms a second: on a busy machine the last says most. Computing is simulated."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pathlib
import re
import statistics
import sys
import threading
import time

from local_job import ROOT, LocalJob

# Threads of the server that serve history and dashboard and nothing else.
THREADS = {"MHD-single", "history", "snapshot view", "dashboard"}


class Client(threading.Thread):
    """Asks for what the page asks for, over one connection."""

    def __init__(self, url: str):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=10)
        self.stopped = threading.Event()
        self.answers = 0

    def get(self, path: str) -> bytes:
        self.connection.request("GET", path)
        self.answers += 1
        return self.connection.getresponse().read()

    def run(self) -> None:
        last = 0
        while not self.stopped.wait(1):
            self.get("/api/live")
            found = re.search(rb'"end_ms":\[([^]]*)', self.get(f"/api/history?since={max(0, last - 5000)}"))
            if found and found.group(1):
                last = int(found.group(1).rsplit(b",", 1)[-1])
            self.get("/api/snapshots")


def ticks(stat: pathlib.Path) -> int:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Of the process, and of the threads that are there for history and dashboard."""
    folder, second = pathlib.Path(f"/proc/{pid}"), os.sysconf("SC_CLK_TCK")
    own = [task for task in (folder / "task").iterdir() if (task / "comm").read_text().strip() in THREADS]
    return ticks(folder / "stat") / second, sum(ticks(task / "stat") for task in own) / second


def one_round(options: argparse.Namespace, with_dashboard: bool) -> dict[str, float]:
    with LocalJob(options.bin) as job:
        job.start_server("--data-epochs", 100000, "--durability", "snapshot", "--snapshot-interval", "1h",
                         *(["--dashboard", 0] if with_dashboard else []))
        for i in range(2):
            job.start_worker(i, "--model", options.model, "--data", "clusters:4000,500,16,4", "--device", "cpu", "--codec", "fp16")
        clients = []
        if with_dashboard:
            url = (job.path / "data" / "DASHBOARD").read_text().strip()
            clients = [Client(url) for _ in range(options.clients)]
            for client in clients:
                client.start()

        def pushes() -> int:
            status = job.status()
            return status["pushes"] if status else 0
        job.wait(lambda: pushes() > 20, 60)
        answers = sum(client.answers for client in clients)
        before, cpu, began = pushes(), cpu_seconds(job.server.pid), time.monotonic()
        time.sleep(options.seconds)
        count, passed, after = pushes() - before, time.monotonic() - began, cpu_seconds(job.server.pid)
        for client in clients:
            client.stopped.set()
        return {"pushes_per_second": count / passed, "server_cpu_ms_per_push": 1000 * (after[0] - cpu[0]) / count,
                "own_cpu_ms_per_second": 1000 * (after[1] - cpu[1]) / passed,
                "answers_per_second": (sum(client.answers for client in clients) - answers) / passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    for i in range(options.rounds):
        for kind in ("off", "on") if i % 2 == 0 else ("on", "off"):
            rounds[kind].append(one_round(options, kind == "on"))
            print(f"round {i + 1}, {kind}: {rounds[kind][-1]}", file=sys.stderr, flush=True)
    result = {kind: {name: statistics.median(one[name] for one in all_) for name in all_[0]} for kind, all_ in rounds.items()}
    # Of the two jobs of a round: they ran one after the other.
    ratio = statistics.median(on["pushes_per_second"] / off["pushes_per_second"] for on, off in zip(rounds["on"], rounds["off"]))
    if options.json:
        print(json.dumps({**result, "push_rate_on_to_off": ratio}))
        return 0
    print(f"push rate with dashboard and clients: {100 * ratio:.1f} % of that without")
    for name in result["on"]:
        print(f"{name}: off {result['off'][name]:.2f}, on {result['on'][name]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
