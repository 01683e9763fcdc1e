"""The job's server: one of the launcher's own, or one that runs elsewhere, and what it says of the job."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import tempfile
import time
from typing import Any

from .._environment import loopback
from .processes import Child, Processes

# The server is asked for the job's state so often; a process that asks costs some 20 ms.
STATUS_SECONDS = 5.0
ANSWER_SECONDS = 5.0
# After it has said that the job is done, a line comes for each worker that leaves.
TAIL_LINES = 5000


class Server:
    """A recon-server that the launcher starts, always on the same data directory and, once it has one, port."""

    def __init__(self, program: str, data: pathlib.Path, flags: list[str], environment: dict[str, str],
                 listen: str = ""):
        self.program = program
        self.listen = listen or loopback(0)
        self.data = data
        self.flags = flags
        self.environment = environment
        self.address = ""
        self.child: Child | None = None
        # Its own word that the job is done, in its log; it ends soon after.
        self.says_done = False

    def start(self, processes: Processes) -> None:
        if not self.address:
            (self.data / "ADDRESS").unlink(missing_ok=True)
        self.child = processes.start("server", [
            self.program, "--data", str(self.data), "--listen", self.address or self.listen, "--exit-when-done",
            *self.flags], self.environment, tail_lines=TAIL_LINES)

    def listens(self) -> bool:
        """Whether its address is known."""
        if not self.address:
            with contextlib.suppress(OSError):
                self.address = (self.data / "ADDRESS").read_text().strip()
        return bool(self.address)

    def secrets(self) -> dict[str, str]:
        """Variables by which its job's processes show that they belong to it, where nobody has given them any: on an address
        other than loopback they do not find the token by themselves."""
        token = self.data.resolve() / "JOB_TOKEN"
        given = any(self.environment.get(name) for name in ("RECON_TOKEN", "RECON_TOKEN_FILE", "RECON_TLS_CERT"))
        return {} if given or not token.exists() else {"RECON_TOKEN_FILE": str(token)}

    def ended(self, child: Child) -> None:
        self.child = None
        said = any("data epochs are completed" in line for line in child.tail)
        self.says_done = said and child.process.returncode == 0


class Status:
    """What `reconctl status` says, now and then, without waiting for it."""

    def __init__(self, program: str | None, address: str, environment: dict[str, str]):
        self.command = [program, "status", "--json", "--server", address] if program else []
        self.environment = environment
        self.last: dict[str, Any] = {}
        self.asked = float("-inf")
        self.process: subprocess.Popen[bytes] | None = None

    def poll(self, every: float = STATUS_SECONDS) -> bool:
        """Asks when it is time. Returns whether there is news."""
        now = time.monotonic()
        if self.process is None and self.command and now - self.asked >= every:
            self.asked = now
            # Into a file: a pipe would be full before a large job's answer is read.
            self.answer = tempfile.TemporaryFile("w+")
            self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=self.answer, stderr=subprocess.DEVNULL, start_new_session=True)
        if self.process is None:
            return False
        if self.process.poll() is None and now - self.asked < ANSWER_SECONDS:
            return False
        return self.take()

    def read(self) -> bool:
        """Asks and waits for the answer."""
        if self.process is not None:
            self.process.kill()
            self.take()
        self.poll(every=0)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ANSWER_SECONDS)
        return self.process is not None and self.take()

    def take(self) -> bool:
        assert self.process is not None
        process, self.process = self.process, None
        process.kill()
        code = process.wait()
        with self.answer as answer:
            answer.seek(0)
            text = answer.read()
        if code != 0:
            return False
        try:
            self.last = json.loads(text)
        except json.JSONDecodeError:
            return False
        return True

    def finished(self) -> bool:
        return self.last.get("phase") == "PHASE_FINISHED"

    def member(self, name: str) -> tuple[int, bool]:
        """The incarnation that the server last saw of a worker, 0 for none, and whether that one has made a step."""
        for member in self.last.get("members", []):
            if member["name"] == name:
                return member["incarnation"], member["progress"]["steps"] > 0
        return 0, False

    def trained(self) -> bool:
        """Whether anybody has made a step in this job."""
        return bool(self.last.get("updates") or self.last.get("samples_completed"))


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def slow_member(members: list[dict[str, Any]]) -> str:
    """Names the member whose batches take much longer than the others' do."""
    times = sorted((member["progress"]["batch_seconds"], member["name"]) for member in members
                   if member["progress"].get("batch_seconds"))
    if len(times) < 2:
        return ""
    usual = times[(len(times) - 1) // 2][0]
    slowest, name = times[-1]
    if slowest < 1.5 * usual:
        return ""
    return f"{name} is slow: {slowest * 1000:.1f} ms a batch, others {usual * 1000:.1f} ms"


def progress_line(status: dict[str, Any]) -> str:
    """Epoch, loss, rate, time left, and who is slow."""
    active = [member for member in status.get("members", []) if member["state"] != "MEMBER_GONE"]
    # A loss of 0 is one that nobody has reported.
    losses = [loss for member in active if (loss := member["progress"]["last_loss"])]
    rate = status["samples_per_second"]
    parts = [f"epoch {status['data_epochs_completed']:.2f} of {status['job']['data_epochs']}"]
    if losses:
        parts.append(f"loss {sum(losses) / len(losses):.4g}")
    for evaluation in status.get("evaluations", [])[-1:]:
        if "accuracy" in evaluation:
            parts.append(f"accuracy {evaluation['accuracy']:.4f}")
    parts.append(f"{rate:,.0f} samples/s of {len(active)} workers")
    if rate > 0 and status["samples_completed"] > 0.01 * status["samples_total"]:
        parts.append(f"{duration((status['samples_total'] - status['samples_completed']) / rate)} left")
    if status.get("standing_seconds", 0) >= 10:
        parts.append(f"STANDS for {duration(status['standing_seconds'])}: {status['waits_for']}")
    elif slow := status.get("holds_up") or slow_member(active):
        parts.append(slow)
    return ", ".join(parts)
