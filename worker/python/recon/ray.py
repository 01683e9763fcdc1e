"""A job on a Ray cluster: its server and its workers are actors, which Ray places and starts again.

    import ray, recon.ray
    ray.init()
    job = recon.ray.Job(train, data="/mnt/shared/job1", workers=4, worker_options={"num_gpus": 1})
    print(job.wait()["data_epochs_completed"])

Each actor runs a process and starts it again when it dies; when an actor dies, with its node say, Ray starts it on
another one. Workers are told where the server is then. Nothing that was acknowledged is lost, as `data` is a directory
that all nodes see. (Where there is none, let `server_flags` have a store as --snapshot-dir: what was pushed since the
last snapshot is lost with the server's node, then.)

Needs Ray (pip install ray) and this package on every node."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, IO

from . import _objects
from .launch import guard
from .launch.machine import find_program
from .launch.server import Status
from .launch.workers import Restarts

try:
    import ray
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("recon.ray needs Ray, which is not installed: pip install ray", name="ray") from missing

RESTARTS = 5
RESTART_WINDOW_SECONDS = 600.0
# How often an actor looks after its process, and asks where the server is.
LOOK_SECONDS = 0.5
# A process that was asked to leave and has not by then is killed.
LEAVE_SECONDS = 30.0
# The address of a server that has moved is of no use: its workers' processes have little to finish.
MOVED_SECONDS = 5.0
# A worker's process that cannot reach the server for longer ends; the next one asks where the server is.
RECONNECT_FOR = "1m"
# A server that was lost with its node keeps the data directory locked until the file system has noticed.
LOCKED_SECONDS = 300.0
# Calls that an actor takes while it runs its process.
CONCURRENT_CALLS = 64
TAIL_LINES = 20

# A command, or a function without arguments.
Program = Sequence[str] | Callable[[], Any]


class JobFailed(RuntimeError):
    """The job cannot go on; the text says why. Its data is kept."""


class Process:
    """A process of an actor's. It ends with the actor's own, even if that is killed.

    One thread starts and watches it; `ask_to_leave` may be called on any."""

    def __init__(self, label: str, command: Sequence[str], given: bytes = b"", **environment: str) -> None:
        self.label = label
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.kill_at = float("inf")
        self.over = False
        self.guard = subprocess.Popen([sys.executable, "-S", "-E", guard.__file__], stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.child = subprocess.Popen(list(command), env={**os.environ, **environment}, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        assert self.child.stdin and self.child.stdout and self.guard.stdin
        try:
            self.guard.stdin.write(f"+{self.child.pid}\n".encode())
            self.guard.stdin.flush()
        except BaseException:
            self._send(signal.SIGKILL)  # Nobody would end it with the actor.
            raise
        self.reader = threading.Thread(target=self._read, args=[self.child.stdout], daemon=True)
        self.reader.start()
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(given)
            self.child.stdin.close()

    def _read(self, pipe: IO[bytes]) -> None:
        """Ray shows what an actor prints, with its name, where the driver runs."""
        for line in pipe:
            text = line.decode(errors="replace").rstrip()
            if text:
                self.tail.append(text)
            print(text, flush=True)

    def ask_to_leave(self, seconds: float) -> None:
        if self.kill_at == float("inf"):
            self.kill_at = time.monotonic() + seconds
            self._send(signal.SIGTERM)

    def ended(self) -> int | None:
        """The exit code, or None while it runs."""
        if time.monotonic() > self.kill_at:
            self._send(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(LOOK_SECONDS)
        if self.child.returncode is None:
            return None
        self._send(signal.SIGKILL)  # What it has started itself is of no use without it.
        self.over = True
        assert self.guard.stdin
        with contextlib.suppress(BrokenPipeError):
            self.guard.stdin.write(f"-{self.child.pid}\n".encode())
            self.guard.stdin.close()
        self.guard.wait()
        self.reader.join(LOOK_SECONDS)
        return self.child.returncode

    def how(self) -> str:
        """How it ended, with the last line that it wrote."""
        code = self.child.returncode
        if code is not None and code < 0:
            return f"{self.label} was killed by {signal.Signals(-code).name}"
        return f"{self.label} ended with exit code {code}" + (f": {self.tail[-1]}" if self.tail else "")

    def says(self, text: str) -> bool:
        """Whether one of its last lines has this."""
        return any(text in line for line in self.tail)

    def _send(self, number: int) -> None:
        if self.over:
            return  # Its number may be another's by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)


def program(name: str) -> str:
    path = find_program(name)
    if path is None:
        raise JobFailed(f"there is no {name} on node {ray.util.get_node_ip_address()}, in RECON_BIN, this package or PATH")
    return path


def cause(error: Exception) -> str:
    return str(getattr(error, "cause", None) or error)


class Server:
    """The actor with the job's recon-server. `run` is one long call; the others are made while it goes on."""

    def __init__(self, data: str, flags: Sequence[str], environment: Mapping[str, str]) -> None:
        self.data = pathlib.Path(data)
        self.flags = list(flags)
        os.environ.update(environment)
        self.address = ""
        self.over = False
        self.process: Process | None = None
        self.stopping = False
        self.last: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Keeps a server running until the job is done. Returns what the server last said of the job."""
        restarts = Restarts(RESTARTS, RESTART_WINDOW_SECONDS)
        begun = time.monotonic()
        try:
            while not self.stopping:
                process = self._start()
                try:
                    code = self._watch(process)
                except BaseException:
                    process.ask_to_leave(0)
                    raise
                print(process.how() if code else "the server has ended", flush=True)
                if code == 0 or self.stopping:
                    break
                if process.says("is in use by process") and time.monotonic() < begun + LOCKED_SECONDS:
                    time.sleep(2 * LOOK_SECONDS)
                    continue
                if code in (2, 3) or not restarts.died():
                    raise JobFailed(process.how() + ("" if code in (2, 3) else f"; it {restarts.text()}"))
                if process.says("cannot listen"):
                    self.address = ""  # The port is somebody else's by now.
                time.sleep(restarts.delay())
            return self.last
        finally:
            self.over = True

    def where(self) -> tuple[str, bool]:
        """The server's address, empty while it has none, and whether the job is over."""
        return self.address, self.over

    def status(self) -> dict[str, Any]:
        """What `reconctl status --json` said a moment ago; empty before the first answer."""
        return self.last

    def stop(self) -> None:
        """Ends the server with a snapshot; `run` returns then."""
        self.stopping = True
        if self.process is not None:
            self.process.ask_to_leave(LEAVE_SECONDS)

    def _start(self) -> Process:
        self.data.mkdir(parents=True, exist_ok=True)
        if not self.address:
            (self.data / "ADDRESS").unlink(missing_ok=True)
        # After its death it comes back where its workers look for it.
        listen = self.address or f"{ray.util.get_node_ip_address()}:0"
        self.process = Process("recon-server", [program("recon-server"), "--data", str(self.data), "--listen", listen,
                                                "--exit-when-done", *self.flags])
        if self.stopping:
            self.process.ask_to_leave(LEAVE_SECONDS)
        return self.process

    def _watch(self, process: Process) -> int:
        status: Status | None = None
        while (code := process.ended()) is None:
            if not self.address:
                with contextlib.suppress(OSError):
                    text = (self.data / "ADDRESS").read_text()
                    self.address = text.strip() if text.endswith("\n") else ""
            elif status is None:
                status = Status(program("reconctl"), self.address, dict(os.environ))
            elif status.poll(2 * LOOK_SECONDS):
                self.last = status.last
        return code


class Worker:
    """The actor with one worker's process."""

    def __init__(self, server: str, name: str, command: Sequence[str], given: bytes,
                 environment: Mapping[str, str]) -> None:
        self.server = ray.get_actor(server)
        self.name = name
        self.command = list(command)
        self.given = given
        os.environ.setdefault("RECON_RECONNECT_FOR", RECONNECT_FOR)
        os.environ.update(environment)
        os.environ.update({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUNBUFFERED": "1",
                           "RECON_NAME": name, "RECON_WORKER": name})

    def run(self) -> None:
        """Keeps a process running, with the server's address, until the job is over."""
        restarts = Restarts(RESTARTS, RESTART_WINDOW_SECONDS)
        while address := self._find_server():
            process = Process(self.name, self.command, self.given, RECON_SERVER=address)
            code, moved = self._watch(process, address)
            if code == 0 and not moved:
                return
            if moved:
                print("the server has moved", flush=True)
                continue
            if ray.get(self.server.where.remote())[1]:
                return  # It was the server that ended first.
            if not restarts.died():
                raise JobFailed(f"{process.how()}; it {restarts.text()}")
            print(f"{process.how()}; starting it again", flush=True)
            time.sleep(restarts.delay())

    def _find_server(self) -> str:
        """Waits until there is a server. Empty: the job is over."""
        while True:
            address, over = ray.get(self.server.where.remote())
            if over or address:
                return "" if over else address
            time.sleep(LOOK_SECONDS)

    def _watch(self, process: Process, address: str) -> tuple[int, bool]:
        """Returns the exit code, and whether the process was ended because the server is elsewhere."""
        asked = self.server.where.remote()
        moved = False
        while (code := process.ended()) is None:
            if not ray.wait([asked], timeout=0)[0]:
                continue  # The actor is being started again.
            now, _ = ray.get(asked)
            asked = self.server.where.remote()
            if now and now != address and not moved:
                moved = True
                process.ask_to_leave(MOVED_SECONDS)
        return code, moved


def _token(server_flags: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """A token that the server wants, and that all actors have, where nobody has said how they trust each other."""
    given = ("RECON_TOKEN", "RECON_TOKEN_FILE", "RECON_TLS_CERT", "RECON_TOKENS", "RECON_OPEN")
    says = any(flag.split("=")[0] in ("--token-file", "--tls-cert", "--tokens", "--open") for flag in server_flags)
    return {} if says or any(environment.get(name) for name in given) else {"RECON_TOKEN": secrets.token_hex(16)}


class Job:
    """A job that runs on the cluster that `ray.init` has connected to. It ends with the driver, or with `stop`.

    Arguments:
        worker: what each worker runs: a function without arguments (that calls `recon.torch.join`, say), or a command,
            ["recon-worker", "--model", ...] or [sys.executable, "/mnt/shared/train.py"]. It finds the server by itself
            (RECON_SERVER).
        data: the server's directory, where all nodes see it. A job that is in it goes on.
        workers: how many there are; `add_workers` makes more.
        server_flags: of recon-server, such as ["--data-epochs", "12"].
        server_options, worker_options: Ray's options of the actors: num_cpus (1 for each), num_gpus, resources...
        environment: variables for all processes. They get a token of the job's, RECON_TOKEN, where nothing here, in this
            process' environment or in server_flags says how they trust each other. Between machines recon wants RECON_TLS_CERT, RECON_TLS_KEY and
            RECON_TLS_CA, or inside a network that you trust RECON_INSECURE=1.

    Threads: one at a time.
    """

    def __init__(self, worker: Program, *, data: str | os.PathLike[str], workers: int, server_flags: Sequence[str] = (),
                 server_options: Mapping[str, Any] | None = None, worker_options: Mapping[str, Any] | None = None,
                 environment: Mapping[str, str] | None = None) -> None:
        if not ray.is_initialized():
            raise RuntimeError("recon.ray.Job: call ray.init() first")
        if workers < 1:
            raise ValueError(f"workers={workers}: there has to be one")
        self._program = worker
        self._environment = {**_token(server_flags, {**os.environ, **(environment or {})}), **(environment or {})}
        self._run = secrets.token_hex(3)
        self._options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(worker_options or {}), "max_restarts": -1,
                         "max_task_retries": -1}
        if callable(worker):
            _objects.encode_program(worker)  # What cannot be sent is said before anything is started.
        server = ray.remote(Server).options(**{  # type: ignore
            "num_cpus": 1, **(server_options or {}), "name": f"recon-{self._run}", "max_restarts": -1, "max_task_retries": -1,
            "max_concurrency": CONCURRENT_CALLS})
        self._server = server.remote(os.path.abspath(data), list(server_flags), self._environment)
        self._served = self._server.run.remote()
        self._workers: dict[Any, Any] = {}  # The actors by their calls of run().
        self._made = 0
        self.add_workers(workers)

    def add_workers(self, count: int, worker: Program | None = None) -> None:
        """They run what the others run, or `worker`."""
        program = worker or self._program
        if callable(program):
            command, given = [sys.executable, "-c", _objects.RUN_PROGRAM], _objects.encode_program(program)
        else:
            command, given = [str(word) for word in program], b""
        for _ in range(count):
            actor = ray.remote(Worker).options(**self._options).remote(  # type: ignore
                f"recon-{self._run}", f"ray-{self._run}-w{self._made}", command, given, self._environment)
            self._made += 1
            self._workers[actor.run.remote()] = actor

    def status(self) -> dict[str, Any]:
        """What `reconctl status --json` says; empty before the server's first answer. Raises JobFailed when the server
        has given up."""
        if ray.wait([self._served], timeout=0)[0]:
            return self._end()
        return ray.get(self._server.status.remote())

    def address(self) -> str:
        """Where the server is now; empty while it is being started."""
        return ray.get(self._server.where.remote())[0]

    def wait(self) -> dict[str, Any]:
        """Waits for the end of the job and of its workers, and returns its last status. Raises JobFailed when it cannot go
        on: the server cannot start, or no worker is left. A worker that fails while others train is given up."""
        failures: list[Exception] = []
        well = 0
        while self._workers:
            ready, _ = ray.wait([self._served, *self._workers])
            if self._served in ready:
                self._end_if_failed()
            for call in set(ready) & set(self._workers):
                actor = self._workers.pop(call)
                try:
                    ray.get(call)
                    well += 1
                except ray.exceptions.RayError as error:
                    failures.append(error)
                ray.kill(actor)
            if self._served in ready and self._workers:
                # What their functions do after the last step may take long.
                ray.wait(list(self._workers))
        # Workers that have seen the job's end are a little before the server.
        if ray.wait([self._served], timeout=LEAVE_SECONDS if well else 0)[0]:
            return self._end()
        self.stop()
        raise JobFailed(f"no worker is left: {cause(failures[0])}" if failures
                        else "all workers have ended, but the job is not done")

    def stop(self) -> dict[str, Any]:
        """Ends workers and server, the server with a snapshot; another Job with the same data goes on."""
        for actor in self._workers.values():
            ray.kill(actor)
        self._workers.clear()
        self._server.stop.remote()
        return self._end()

    def _end_if_failed(self) -> None:
        try:
            ray.get(self._served)
        except ray.exceptions.RayError:
            self._end()

    def _end(self) -> dict[str, Any]:
        """What the server's actor has returned, or JobFailed; the actors end."""
        try:
            return ray.get(self._served)
        except ray.exceptions.RayError as error:
            raise JobFailed(cause(error)) from error
        finally:
            for actor in [*self._workers.values(), self._server]:
                ray.kill(actor)
            self._workers.clear()
