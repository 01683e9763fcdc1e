#!/usr/bin/env python3
"""A job's history through kills of its server: history_test.py --bin FOLDER. reconctl reads it from a server and from its
data directory, as table, CSV and JSON, and compares two; TensorBoard's own package reads the event files, if it is there."""

from __future__ import annotations

import argparse
import csv
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import dashboard_test as dashboard  # noqa: E402


def reconctl(*arguments: object, expect: int = 0) -> str:
    done = subprocess.run([dashboard.BIN / "reconctl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, f"{arguments}: {done.returncode}, {done.stderr}"
    return done.stderr if expect else done.stdout


def series_of(track: dict, name: str) -> list[float]:
    return next(one["mean"] for one in track["series"] if one["name"] == name)


def kinds_of(history: dict) -> list[str]:
    return [event["kind"] for event in history["events"]]


def check_tensorboard(run: pathlib.Path, history: dict) -> None:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("SKIP: TensorBoard's reader: its package is not installed (pip install tensorboard)")
        return
    read = EventAccumulator(str(run))
    read.Reload()
    tags = read.Tags()["scalars"]
    assert {"train/loss", "train/samples_per_second", "eval/accuracy"} <= set(tags), tags
    shown = [round(scalar.value, 5) for scalar in read.Scalars("train/loss")]
    known = [round(value, 5) for value in series_of(history["job"], "loss") if value is not None]
    assert shown == known, (shown, known)
    steps = [scalar.step for scalar in read.Scalars("train/loss")]
    assert steps == sorted(steps) and steps[-1] > 0, steps
    print(f"ok   TensorBoard reads {len(shown)} points of {len(tags)} curves")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=dashboard.ROOT / "build/release/bin")
    dashboard.BIN = parser.parse_args().bin.resolve()
    with tempfile.TemporaryDirectory(prefix="recon-history-") as folder:
        job = dashboard.Job(pathlib.Path(folder))
        data = job.folder / "data"
        live = job.folder / "live"
        job.server_flags = ["--tensorboard", live]
        try:
            run_job(job, data)
        finally:
            job.close()
        history = json.loads(reconctl("history", data, "--json"))
        # By hand twice, and once more in the same process for the rollback.
        assert kinds_of(history).count("started") == 3, kinds_of(history)
        assert kinds_of(history).count("rollback") == 1
        assert sum(event["kind"] == "joined" for event in history["events"]) == 2, history["events"]
        assert "draining" in kinds_of(history)

        rows = list(csv.DictReader(io.StringIO(reconctl("history", data, "--csv"))))
        points = [row for row in rows if row["kind"] == "point"]
        assert len(points) == len(history["job"]["end_ms"])
        assert float(points[-1]["updates"]) > 0
        assert any(row["kind"] == "evaluation" and float(row["accuracy"]) > 0.3 for row in rows)
        assert "started" in reconctl("history", data)
        one = json.loads(reconctl("history", data, "--worker", "w0", "--json"))
        assert "w0" in [track["name"] for track in one["workers"]]

        compared = json.loads(reconctl("compare", data, data, "--json"))
        a, b = compared["jobs"]
        assert a == b and a["server_restarts"] == 2 and a["seconds_to_loss"] is not None, compared
        assert "samples a second" in reconctl("compare", data, data)
        for wrong, code in ((["history", data, "--worker", "nobody"], 5), (["history", folder], 5),
                            (["compare", data, "nonsense"], 5), (["history", "127.0.0.1:1"], 3)):
            line = reconctl(*wrong, expect=code)
            assert line.count("\n") == 1, line

        run = job.folder / "run"
        reconctl("history", data, "--tensorboard", run)
        assert len(list(run.iterdir())) == 1 and len(list(live.iterdir())) == 3  # One for each start.
        check_tensorboard(run, history)
        check_damage(job, data)
    print("ok   history")
    return 0


def run_job(job: dashboard.Job, data: pathlib.Path) -> None:
    job.start_server()
    for name in ("w0", "w1"):
        job.start_worker(name)

    def now() -> dict:
        return json.loads(reconctl("history", job.listen, "--json"))
    dashboard.eventually("an evaluation and some points", lambda: (
        lambda history: len(history["job"]["end_ms"]) >= 7 and history["evaluations"]["end_ms"])(now()))
    before = now()
    dashboard.eventually("the file has the first points", lambda: (data / "history").exists())
    job.kill("server")
    job.start_server()
    dashboard.eventually("the history goes on", lambda: len(now()["job"]["end_ms"]) > len(before["job"]["end_ms"]) and
                         now()["job"]["end_ms"][:2] == before["job"]["end_ms"][:2])
    assert reconctl("history", "--server", job.listen)
    # All is made anew for a rollback, but for the dashboard's port, and the history goes on.
    known = len(now()["job"]["end_ms"])
    reconctl("rollback", 1, "--server", job.listen)
    dashboard.eventually("the rollback is told", lambda: kinds_of(now()).count("rollback") == 1)
    dashboard.eventually("points come after it", lambda: len(now()["job"]["end_ms"]) > known + 1)

    def served() -> bool:
        try:
            with urllib.request.urlopen(job.url + "api/history", timeout=60) as answer:
                return "rollback" in [event["kind"] for event in json.loads(answer.read())["events"]]
        except urllib.error.HTTPError:
            return False
    dashboard.eventually("the dashboard tells it, too", served)
    server = job.processes.pop("server")
    reconctl("drain", "--server", job.listen)
    assert server.wait(60) == 0


def check_damage(job: dashboard.Job, data: pathlib.Path) -> None:
    """A damaged file costs the history and a line, and the server starts."""
    file = data / "history"
    bytes_ = bytearray(file.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    file.write_bytes(bytes_)
    assert "checksum" in reconctl("history", data, expect=4)
    try:
        job.start_server()
        log = (job.folder / "server.log").read_text()
        assert log.count("the job's history begins anew") == 1, log
        assert kinds_of(json.loads(reconctl("history", job.listen, "--json"))).count("started") == 1
    finally:
        job.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
