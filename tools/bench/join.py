#!/usr/bin/env python3
"""How fast a worker that joins a running job gets its parameters over a link of limited rate, beside what plain TCP gets
over the same link. Network namespaces, so it needs root; computing is simulated. With --json, one JSON object as the last
line."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import SERVER_ADDRESS, Star  # noqa: E402

MODEL = "synthetic:bert-base"
JOINER = 1
PLAIN_BYTES = 256 << 20

SEND = """
import socket, sys
listener = socket.create_server(("{address}", {port}))
print("ready", flush=True)
link, left = listener.accept()[0], {size}
while left > 0:
    left -= link.send(bytes(min(left, 1 << 20)))
"""
RECEIVE = """
import socket, time
link, got, start = socket.create_connection(("{address}", {port})), 0, time.monotonic()
while got < {size}:
    piece = len(link.recv(1 << 20))
    assert piece > 0
    got += piece
print(time.monotonic() - start)
"""


def plain_tcp(star, round_):
    """Bytes per second, as the joiner's interface counts them, of one connection from the server's namespace."""
    before = star.counters(JOINER)[1]
    place = {"address": SERVER_ADDRESS, "port": 7100 + round_, "size": PLAIN_BYTES}
    sender = subprocess.Popen([*star.prefix("server", 0), "python3", "-c", SEND.format(**place)], stdout=subprocess.PIPE)
    try:
        assert sender.stdout.readline() == b"ready\n"
        done = subprocess.run([*star.prefix("worker", JOINER), "python3", "-c", RECEIVE.format(**place)], check=True,
                              capture_output=True, timeout=300)
    finally:
        sender.kill()
        sender.wait()
    return (star.counters(JOINER)[1] - before) / float(done.stdout)


def join(star, job, state_bytes):
    """Bytes per second of the joiner's interface while the parameters come, and seconds from the start of its process to
    the last of them."""
    before = star.counters(JOINER)[1]
    started = time.monotonic()
    # Long steps: what is measured is the pull before the first.
    worker = job.start_worker(JOINER, "--insecure", "--model", MODEL, "--step-ms", 60_000, "--pull-codec", "fp32")
    samples = [(started, 0)]
    deadline = started + 300
    while samples[-1][1] < state_bytes:
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"bench: the joining worker has {samples[-1][1]} of {state_bytes} bytes")
        samples.append((time.monotonic(), star.counters(JOINER)[1] - before))
        time.sleep(0.01)
    worker.kill()
    worker.wait()
    job.processes.remove(worker)
    # The handshake and the first slow start are part of the seconds, not of the rate.
    first = next(s for s in samples if s[1] > state_bytes / 100)
    return (samples[-1][1] - first[1]) / (samples[-1][0] - first[0]), samples[-1][0] - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--mbit", default=1000, type=int, help="rate of each worker's link")
    parser.add_argument("--rounds", default=3, type=int, help="medians are over these")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    with Star(JOINER + 1, options.mbit) as star, LocalJob(options.bin, star.prefix, f"{SERVER_ADDRESS}:7070") as job:
        plain = [plain_tcp(star, round_) for round_ in range(options.rounds)]
        job.start_server("--insecure", "--data-epochs", 100_000, "--optimizer", "sgd", "--snapshot-interval", "1h")
        job.start_worker(0, "--insecure", "--model", MODEL, "--step-ms", 60_000)
        status = job.wait(lambda: (s := job.status()) and s["phase"] == "PHASE_RUNNING" and s, 120)
        state_bytes = 4 * int(status["parameters"])
        joins = [join(star, job, state_bytes) for _ in range(options.rounds)]
    rate = statistics.median(rate for rate, _ in joins)
    result = {"bench": "join", "model": MODEL, "simulated": True, "parameters_bytes": state_bytes, "link_mbit": options.mbit,
              "plain_tcp_MBps": round(statistics.median(plain) / 1e6, 1), "join_MBps": round(rate / 1e6, 1),
              "join_s": round(statistics.median(seconds for _, seconds in joins), 2),
              "ratios": {"join_of_link": round(rate / statistics.median(plain), 3)}}
    print(f"join: {result['parameters_bytes'] / 1e6:.0f} MB in {result['join_s']} s; {result['join_MBps']} MB/s, plain TCP "
          f"{result['plain_tcp_MBps']} MB/s")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
