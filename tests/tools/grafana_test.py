#!/usr/bin/env python3
"""Alert rules and the Grafana dashboard: what they name is served by a real server, and promtool accepts and tests the rules.
Usage: grafana_test.py --bin FOLDER. What needs promtool (Debian's package prometheus) is skipped, by name, without it."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import dashboard_test as dashboard  # noqa: E402

GRAFANA = dashboard.ROOT / "deploy/grafana"
ONLY_WITH_TLS = {"recon_server_certificate_valid_days"}
METRIC = re.compile(r"\brecon_[a-z_]+")


def metrics_of(texts: list[str]) -> set[str]:
    return {name for text in texts for name in METRIC.findall(text)}


def named() -> set[str]:
    board = json.loads((GRAFANA / "recon.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    alerts = re.findall(r"^ *expr: (.*)$", (GRAFANA / "alerts.yml").read_text(), re.MULTILINE)
    unseen = metrics_of(alerts) - metrics_of(shown)
    if unseen:
        raise SystemExit(f"grafana_test: alerts are made from {sorted(unseen)}, which recon.json does not show")
    names = metrics_of(shown + variables + alerts)
    assert len(names) > 10, names
    return names - ONLY_WITH_TLS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def served(job: dashboard.Job, port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return set(re.findall(r"^(recon_[a-z_]+)", text, re.MULTILINE)) | {
        f"worker {name}" for name in re.findall(r'recon_server_worker_loss\{worker="(\w+)"\}', text)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=dashboard.ROOT / "build/release/bin")
    dashboard.BIN = parser.parse_args().bin.resolve()
    names = named()
    with tempfile.TemporaryDirectory(prefix="recon-grafana-") as folder:
        job = dashboard.Job(pathlib.Path(folder))
        port = free_port()
        job.server_flags = ["--metrics-address", port]
        try:
            job.start_server()
            job.start_worker("w0")
            job.start_worker("w1")
            missing = names
            dashboard.eventually("every worker has series", lambda: {"worker w0", "worker w1"} <= served(job, port))

            def all_there() -> bool:
                nonlocal missing
                missing = names - served(job, port)
                return not missing
            try:
                dashboard.eventually("every metric is served", all_there, 30)
            except AssertionError:
                raise SystemExit(f"grafana_test: named in deploy/grafana, and not served: {sorted(missing)}") from None
            job.kill("w1")
            dashboard.eventually("the series of w1 end", lambda: "worker w1" not in served(job, port))
        finally:
            job.close()
    print(f"ok   {len(names)} metrics are served")
    promtool = shutil.which("promtool")
    if promtool is None:
        print("SKIP: alert rules: no promtool (Debian's package prometheus)")
        return 0
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=GRAFANA, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"grafana_test: promtool {' '.join(command)}: {done.stdout}{done.stderr}")
        print(f"ok   promtool {' '.join(command)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
