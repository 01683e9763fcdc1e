"""The launcher's workers: each a process that is started again when it dies, from a warm spare where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import secrets
import socket
import sys
import time

from .machine import cores, devices, imports_of
from .processes import Child, Processes, say

# The second start in a row waits half a second, the next one, the one after two, and so on.
BACKOFF_SECONDS = 0.5
BACKOFF_SECONDS_MAX = 10.0


@dataclasses.dataclass
class Program:
    """What every worker runs."""
    name: str
    module: bool
    arguments: list[str]
    preload: list[str] | None

    def command(self) -> list[str]:
        return [sys.executable, "-u", *(["-m"] if self.module else []), self.name, *self.arguments]

    def modules(self) -> list[str]:
        if self.preload is not None:
            return self.preload
        return [] if self.module else imports_of(self.name)


class Restarts:
    """How often something may be started again: `limit` times within `window` seconds."""

    def __init__(self, limit: int, window: float):
        self.limit = limit
        self.window = window
        self.deaths: list[float] = []

    def died(self) -> bool:
        """Counts a death. Returns whether it may be started again."""
        now = time.monotonic()
        self.deaths = [at for at in self.deaths if now - at < self.window] + [now]
        return len(self.deaths) <= self.limit

    def delay(self) -> float:
        """Seconds to wait before the next start: none after the first death, so that training goes on at once."""
        before = len(self.deaths) - 1
        return min(BACKOFF_SECONDS * 2 ** (before - 1), BACKOFF_SECONDS_MAX) if before > 0 else 0.0

    def text(self) -> str:
        return f"died {len(self.deaths)} times within {self.window:.0f} s, {self.limit} restarts are allowed"


class Worker:
    """One place for a worker; its name stays the same, so that a restarted one replaces the dead one at once."""

    def __init__(self, label: str, name: str, environment: dict[str, str], restarts: Restarts):
        self.label = label
        self.name = name
        self.environment = environment
        self.restarts = restarts
        self.child: Child | None = None
        self.due: float | None = 0.0  # When to start it, while it does not run.
        self.finished = False  # It ended with 0.
        self.error = ""  # The last line of the process that died last, where it had made no step.
        self.dead: set[int] = {0}  # Incarnations of processes that have ended.

    def may_come_back(self) -> bool:
        return self.child is not None or self.due is not None


class Workers:
    def __init__(self, processes: Processes, program: Program, count: int, environment: dict[str, str], spare: bool,
                 restarts: Restarts):
        self.processes = processes
        self.program = program
        self.spare_wanted = spare
        self.spare: Child | None = None
        self.spare_pipe = -1
        self.environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self.environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
        # Scripts that call collectives (recon.hvd) begin when all are there.
        self.environment.setdefault("RECON_MIN_SIZE", str(count))
        gpus = devices()
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32]
        run = secrets.token_hex(3)
        self.all: list[Worker] = []
        for number in range(count):
            name = f"{host}-{run}-w{number}"
            # RECON_NAME is the flag --name of a worker; a script that makes several workers has RECON_WORKER.
            own = {"RECON_WORKER": name, "RECON_NAME": name}
            if gpus:
                own["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
            self.all.append(Worker(f"w{number}", name, own, Restarts(restarts.limit, restarts.window)))

    def start_due(self, address: str) -> None:
        for worker in self.all:
            if worker.child is None and worker.due is not None and time.monotonic() >= worker.due:
                worker.due = None
                own = {**worker.environment, "RECON_SERVER": address}
                worker.child = self.from_spare(worker.label, own) or self.processes.start(
                    worker.label, self.program.command(), {**self.environment, **own})

    def start_spare(self) -> None:
        """Starts a process that imports what the program will import."""
        if self.spare is not None or not self.spare_wanted:
            return
        read, self.spare_pipe = os.pipe()
        script = pathlib.Path(__file__).resolve().parent / "spare.py"
        command = [sys.executable, "-u", str(script), str(read), *self.program.modules()]
        self.spare = self.processes.start("spare", command, self.environment, pass_fds=[read])
        os.close(read)

    def from_spare(self, label: str, environment: dict[str, str]) -> Child | None:
        """Makes the spare a worker, where there is one."""
        child, self.spare = self.spare, None
        if child is None or child.process.poll() is not None:
            return None
        job = {"program": self.program.name, "module": self.program.module, "arguments": self.program.arguments,
               "environment": environment}
        child.label = label
        # Should it die now, that is the death of a worker.
        with contextlib.suppress(BrokenPipeError), open(self.spare_pipe, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(job) + "\n")
        return child

    def drop_spare(self) -> None:
        """Ends the spare: no worker will need it any more."""
        self.spare_wanted = False
        if self.spare is not None:
            self.spare = None
            os.close(self.spare_pipe)

    def spare_ended(self, child: Child) -> None:
        """A spare that dies while it waits is not started again: what it imports may be the cause."""
        if self.spare is not None and child is self.spare:
            self.spare = None
            say(f"the warm spare is gone ({child.death().how()}); restarts take as long as starts from now on")
            os.close(self.spare_pipe)
        self.spare_wanted = self.spare_wanted and child.process.returncode == 0

    def of(self, child: Child) -> Worker | None:
        return next((worker for worker in self.all if worker.child is child), None)

    def running(self) -> list[Worker]:
        return [worker for worker in self.all if worker.child is not None]

    def labels(self, text: str) -> str:
        """The text with the workers' names as the prefixes of their lines have them."""
        for worker in self.all:
            text = text.replace(worker.name, worker.label)
        return text
