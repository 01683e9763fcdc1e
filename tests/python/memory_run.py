"""Memory and descriptors of a job's processes while others are killed: memory_run.py --bin DIR --seconds 1800

One worker and the server stay; another worker is killed again and again; in the last third of the time so is the server.
Prints a line a minute. Exits with 1 if a process that stayed has more than the bounds below beyond what it had when it
was warm. PYTHONPATH: the package."""

import argparse
import dataclasses
import os
import pathlib
import statistics
import sys
import time

from jobs import Script, Server, wait_for

# Of the resident set, between the medians of two windows. A server keeps what has come of each split; in half an hour with
# 80 kills it had 1 MiB more. Allocators keep some of what is free.
MIB_MAX = 24
DESCRIPTORS_MAX = 8
THREADS_MAX = 12  # gRPC has some more from the first time that the server is killed, and keeps them.
KILL_SECONDS = 12.0
SAMPLE_SECONDS = 1.0
# Parts of the time: a process is warm after the first, and is compared between windows of the second's length.
WARM, WINDOW = 0.15, 0.1
SERVER_KILLED_FROM = 0.67


@dataclasses.dataclass
class Sample:
    at: float  # Seconds since the beginning.
    mib: float
    descriptors: int
    threads: int


def sample(pid: int, at: float) -> Sample:
    process = pathlib.Path("/proc", str(pid))
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(at, int(fields["VmRSS"].split()[0]) / 1024, len(os.listdir(process / "fd")),
                  int(fields["Threads"]))


def window(samples: list[Sample], begin: float, end: float) -> Sample:
    """The median of what was sampled in that time."""
    chosen = [one for one in samples if begin <= one.at < end]
    return Sample(begin, statistics.median(one.mib for one in chosen),
                  round(statistics.median(one.descriptors for one in chosen)),
                  round(statistics.median(one.threads for one in chosen)))


def growth(name: str, samples: list[Sample], warm: float, end: float, length: float) -> list[str]:
    """A sentence for each bound that the process has passed, from the window at `warm` to the one before `end`."""
    before, after = window(samples, warm, warm + length), window(samples, end - length, end)
    print(f"{name}: from {before.mib:.1f} to {after.mib:.1f} MiB, {before.descriptors} to {after.descriptors} "
          f"descriptors, {before.threads} to {after.threads} threads in {end - warm:.0f} s")
    return [f"{name} has grown by {grown:.1f} {unit}, more than {bound}" for grown, bound, unit in (
        (after.mib - before.mib, MIB_MAX, "MiB"), (after.descriptors - before.descriptors, DESCRIPTORS_MAX, "descriptors"),
        (after.threads - before.threads, THREADS_MAX, "threads")) if grown > bound]


class Run:
    """The job, and what its processes took."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.server_seconds = seconds * SERVER_KILLED_FROM
        self.samples: dict[str, list[Sample]] = {"server": [], "worker": []}
        self.kills = {"worker": 0, "server": 0}
        self.steady = self.worker("steady")
        self.other = self.worker("other0")
        wait_for("the job", lambda: server.phase() == "PHASE_RUNNING")

    def worker(self, name: str) -> Script:
        return Script(self.server, name, "--optimizer", "adamw", "--epochs", "100000", "--samples", "30000")

    def go(self) -> list[str]:
        began = time.monotonic()
        said = next_kill = 0.0
        while (at := time.monotonic() - began) < self.seconds:
            self.take(at)
            if at >= next_kill:
                next_kill = at + KILL_SECONDS
                self.kill(at)
            if at >= said:
                said = at + 60
                self.say(at)
            time.sleep(SAMPLE_SECONDS)
        length = self.seconds * WINDOW
        return (growth("server", self.samples["server"], self.seconds * WARM, self.server_seconds, length)
                + growth("worker", self.samples["worker"], self.seconds * WARM, self.seconds, length))

    def take(self, at: float) -> None:
        if self.steady.process.poll() is not None:
            raise AssertionError(f"the worker ended with {self.steady.process.returncode}: {self.steady.log()}")
        assert self.server.process is not None
        self.samples["server"].append(sample(self.server.process.pid, at))
        self.samples["worker"].append(sample(self.steady.process.pid, at))

    def kill(self, at: float) -> None:
        if at > self.server_seconds and sum(self.kills.values()) % 2 == 0:
            self.kills["server"] += 1
            self.server.kill()
            self.server.start()
            return
        self.kills["worker"] += 1
        self.server.scripts.remove(self.other)
        self.other.kill()
        self.other = self.worker(f"other{self.kills['worker']}")

    def say(self, at: float) -> None:
        of_server, of_worker = self.samples["server"][-1], self.samples["worker"][-1]
        completed = int(self.server.status()["samples_completed"])
        print(f"{at:5.0f} s: server {of_server.mib:.1f} MiB, {of_server.descriptors} descriptors, {of_server.threads} "
              f"threads; worker {of_worker.mib:.1f} MiB, {of_worker.descriptors}, {of_worker.threads}; {completed} samples, "
              f"killed {self.kills['worker']} workers, {self.kills['server']} times the server", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=1800)
    options = parser.parse_args()
    with Server(options.bin, "--snapshot-interval", "2s") as server:
        failures = Run(server, options.seconds).go()
    print(*failures, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
