"""`recon run`: starts a job's server and workers on this machine, and starts again what dies.

Each worker is a process that runs the script; nothing of the job is lost with one, as its server has the model. The
server itself goes on from its data directory. Uses the standard library only: PyTorch is imported by workers."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import shlex
import signal
import sys
import time
from typing import NoReturn

from .launch.machine import find_program
from .launch.processes import Child, Death, Processes, say
from .launch.server import STATUS_SECONDS, Server, Status, progress_line
from .launch.workers import Program, Restarts, Worker, Workers

RESTARTS = 5
RESTART_WINDOW_SECONDS = 600.0
# A server that has not said where it listens by then will not.
LISTEN_SECONDS = 120.0
# Whoever was asked to leave and has not by then is killed: schedulers wait no longer.
LEAVE_SECONDS = 30.0
# The spare is imported when the workers have trained, or after so long where nobody says so.
SPARE_SECONDS = 10.0
# Until a job has begun to train, the server is asked so often whether it has.
START_SECONDS = 1.0
CAUSE_LINES = 12


class Launcher:
    """One thread: starts, watches, restarts. Ends with the job's exit code."""

    def __init__(self, options: argparse.Namespace):
        self.processes = Processes()
        self.restarts = Restarts(options.restarts, options.restart_window)
        self.only_sets = options.only_sets
        self.workers = Workers(self.processes, options.program, options.workers, dict(os.environ), options.spare,
                               self.restarts)
        self.server: Server | None = None
        self.address: str = options.server
        if not self.address:
            self.server = Server(options.server_program, options.data, options.server_flags, dict(os.environ),
                                 options.listen)
        self.status: Status | None = None
        self.started = time.monotonic()
        self.server_due: float | None = None
        self.unhealed: list[Death] = []  # Since which nobody has trained: the first is the cause of what follows.
        self.failed = ""  # Why the job was given up.
        self.stopping = 0  # The signal that the launcher got first.
        self.deadline = float("inf")  # When those who were asked to leave are killed.
        self.shown = ""

    # Starting.

    def start_server(self) -> None:
        assert self.server is not None
        self.server.data.mkdir(parents=True, exist_ok=True)
        self.server.start(self.processes)
        deadline = time.monotonic() + LISTEN_SECONDS
        while not self.server.listens() and self.server.child is not None and not self.stopping:
            self.turn(0.02)
            if time.monotonic() > deadline and not self.failed:
                self.give_up(f"the server did not say within {LISTEN_SECONDS:.0f} s where it listens")
        self.address = self.server.address
        self.workers.environment.update(self.server.secrets())

    def run(self) -> int:
        if self.server is not None:
            self.start_server()
        if self.address and not self.failed:
            secrets = self.server.secrets() if self.server else {}
            self.status = Status(find_program("reconctl"), self.address, {**os.environ, **secrets})
            say(f"{len(self.workers.all)} workers, server {self.address}"
                + (f", data in {self.server.data}" if self.server else ""))
        while not self.over():
            if not self.failed and not self.stopping:
                self.workers.start_due(self.address)
            self.turn(0.2)
        self.workers.drop_spare()
        self.end_server()
        return self.result()

    def over(self) -> bool:
        if self.failed or self.stopping:
            return not self.workers.running()
        return not any(worker.may_come_back() for worker in self.workers.all)

    # Watching.

    def turn(self, seconds: float) -> None:
        for child in self.processes.wait(seconds):
            self.ended(child)
        for number in self.processes.signals:
            self.interrupted(number)
        self.processes.signals.clear()
        if time.monotonic() > self.deadline:
            self.deadline = float("inf")
            say(f"killing what has not left within {LEAVE_SECONDS:.0f} s")
            self.tell_workers(signal.SIGKILL)
        if self.failed or self.stopping:
            return
        if self.server and self.server_due is not None and time.monotonic() >= self.server_due:
            self.server_due = None
            self.server.start(self.processes)
        if self.status is not None:
            self.look(self.status)
        if time.monotonic() - self.started > SPARE_SECONDS and not self.job_done():
            self.workers.start_spare()

    def look(self, status: Status) -> None:
        """Takes in what the server says, now and then."""
        if not status.poll(STATUS_SECONDS if status.trained() else START_SECONDS):
            return
        self.take_in(status)
        if not status.trained() or status.finished():
            return
        self.workers.start_spare()
        line = self.workers.labels(progress_line(status.last))
        if line != self.shown:
            self.shown = line
            say(line)

    def take_in(self, status: Status) -> None:
        """A worker that trains again, or a server whose workers do, has no part in what fails later."""
        well = {worker.label for worker in self.workers.running() if self.has_stepped(worker)}
        if well and self.server is not None and self.server.child is not None:
            well.add("server")
        self.unhealed = [death for death in self.unhealed if death.label not in well]

    def job_done(self) -> bool:
        return bool(self.server and self.server.says_done) or bool(self.status and self.status.finished())

    # Ends.

    def ended(self, child: Child) -> None:
        worker = self.workers.of(child)
        if worker is not None:
            worker.child = None
            self.worker_ended(worker, child)
        elif self.server is not None and child is self.server.child:
            self.server.ended(child)
            self.server_ended(child)
        else:
            self.workers.spare_ended(child)

    def worker_ended(self, worker: Worker, child: Child) -> None:
        code = child.process.returncode
        if code == 0:
            worker.finished = True
            if self.status is not None and not self.job_done():
                self.status.read()
            return
        if self.failed or self.stopping:
            return
        death = child.death()
        stepped = self.stepped_before(worker, death)
        before = [other for other in self.workers.all if other.error and other.error == death.error()]
        worker.error = "" if stepped else death.error()
        self.unhealed.append(death)
        if self.job_done():
            say(f"{death.how()}; the job is done, so it is not started again")
        elif not stepped and before:
            self.same_error_twice(worker, death)
        elif not worker.restarts.died():
            say(f"{death.how()}; it is not started again: {worker.restarts.text()}")
            if not self.others_of(worker):
                self.give_up(f"the last worker, {worker.label}, {worker.restarts.text()}")
        else:
            delay = worker.restarts.delay()
            worker.due = time.monotonic() + delay
            say(f"{death.how()}; starting it again" + (f" in {delay:.1f} s" if delay else ""))

    def stepped_before(self, worker: Worker, death: Death) -> bool:
        """Whether the process made a step. The server is asked only where there is an error to compare."""
        if self.status is None:
            return False
        if death.error():
            self.status.read()
        stepped = self.has_stepped(worker)
        worker.dead.add(self.status.member(worker.name)[0])
        return stepped

    def has_stepped(self, worker: Worker) -> bool:
        """Whether the server has had a push of the worker's process of now, or of the one that has just ended."""
        incarnation, stepped = self.status.member(worker.name) if self.status else (0, False)
        return stepped and incarnation not in worker.dead

    def others_of(self, worker: Worker) -> list[Worker]:
        return [other for other in self.workers.all if other is not worker and other.may_come_back()]

    def same_error_twice(self, worker: Worker, death: Death) -> None:
        """Starting it again would only fail again. While others train, they go on."""
        first = next(past for past in self.unhealed if past.label == "server" or past.error() == death.error())
        self.unhealed.remove(first)
        self.unhealed.insert(0, first)
        why = f"the same error twice without a step of training ({death.error()})"
        if self.others_of(worker) and self.status is not None and self.status.trained():
            say(f"{death.how()}; it is not started again: {why}")
        else:
            self.give_up(why)

    def server_ended(self, child: Child) -> None:
        assert self.server is not None
        code = child.process.returncode
        if code == 0 or self.failed or self.stopping:
            return
        death = child.death()
        self.unhealed.append(death)
        if code == 2 or not self.server.address:
            self.give_up("the server does not start")
        elif not self.restarts.died():
            self.give_up(f"the server {self.restarts.text()}")
        else:
            delay = self.restarts.delay()
            self.server_due = time.monotonic() + delay
            say(f"{death.how()}; starting it again on {self.server.data}" + (f" in {delay:.1f} s" if delay else ""))

    def give_up(self, why: str) -> None:
        self.failed = why
        self.leave(signal.SIGTERM)

    def interrupted(self, number: int) -> None:
        if self.stopping or self.failed:
            say("killing all workers")
            self.tell_workers(signal.SIGKILL)
            if self.server and self.server.child:
                self.server.child.send(signal.SIGKILL)
            return
        self.stopping = number
        say(f"{signal.Signals(number).name}: workers leave; once more kills them")
        self.leave(number)

    def leave(self, number: int) -> None:
        self.workers.drop_spare()
        self.deadline = time.monotonic() + LEAVE_SECONDS
        self.tell_workers(number)

    def tell_workers(self, number: int) -> None:
        for worker in self.workers.running():
            assert worker.child is not None
            worker.child.send(number)

    # The end.

    def end_server(self) -> None:
        """A server whose job is done ends by itself; another takes a snapshot and ends."""
        if self.status is not None and not self.job_done():
            self.status.read()
        if self.server is None:
            return
        if self.server.child is not None and not self.job_done():
            self.server.child.send(signal.SIGTERM)
        self.deadline = time.monotonic() + LEAVE_SECONDS
        while self.server.child is not None:
            if time.monotonic() > self.deadline:
                self.deadline = float("inf")
                say(f"killing the server, which has not ended within {LEAVE_SECONDS:.0f} s")
                self.server.child.send(signal.SIGKILL)
            self.turn(0.2)

    def result(self) -> int:
        """Says how it ended. The cause comes last, where it is not overlooked."""
        if self.stopping:
            say("stopped" + (f"; the same command with --data {self.server.data} goes on" if self.server else ""))
            return 128 + self.stopping
        unfinished = [worker.label for worker in self.workers.all if not worker.finished]
        if self.failed or unfinished:
            what = self.failed or (f"the job is done, but {', '.join(unfinished)} did not end well" if self.job_done()
                                   else f"{', '.join(unfinished)} did not end well")
            say(f"failed: {what}")
            return self.say_cause()
        if self.only_sets:
            say(f"done in {time.monotonic() - self.started:.0f} s")
            return 0
        asked = self.server is not None or bool(self.status and self.status.last)
        if asked and not self.job_done():
            last = self.status.last if self.status else {}
            where = f" at epoch {last['data_epochs_completed']:.2f} of {last['job']['data_epochs']}" if last else ""
            say(f"failed: all workers have ended, but the job is not done{where}")
            return 1
        say(f"done in {time.monotonic() - self.started:.0f} s")
        return 0

    def say_cause(self) -> int:
        if not self.unhealed:
            return 1
        first = self.unhealed[0]
        for line in first.tail[-CAUSE_LINES:]:
            say(f"  {first.label}: {line}")
        say(f"first cause: {first.how()}" + (f": {first.error()}" if first.error() else ""))
        return first.exit_code()


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"recon: {message}\n")


def parser() -> argparse.ArgumentParser:
    main = Parser(prog="recon", description=__doc__.split("\n")[0].replace("`recon run`: s", "S"))
    verbs = main.add_subparsers(dest="verb", required=True, metavar="run")
    run = verbs.add_parser("run", help="start a server and workers, and start again what dies",
                           usage="recon run --workers N [flags] [-m] SCRIPT [its arguments]", description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_argument("--workers", type=int, required=True, metavar="N", help="processes that train on this machine")
    run.add_argument("--server", default=os.environ.get("RECON_SERVER", ""), metavar="HOST:PORT",
                     help="the job's server; one is started here where neither this nor RECON_SERVER names one")
    run.add_argument("--data", type=pathlib.Path, metavar="DIR",
                     help="the started server's data; a job that is in it goes on (default: recon-jobs/SCRIPT-TIME)")
    run.add_argument("--listen", default="", metavar="HOST:PORT",
                     help="where the started server listens, for workers on other machines (default: a free port of "
                          "this machine alone)")
    run.add_argument("--server-args", action="append", default=[], metavar="'FLAGS'",
                     help="flags for the started server, such as '--sync bsp'; may be given several times")
    run.add_argument("--restarts", type=int, default=RESTARTS, metavar="R",
                     help="how often a worker, and the server, is started again within --restart-window "
                          f"(default {RESTARTS})")
    run.add_argument("--restart-window", type=float, default=RESTART_WINDOW_SECONDS, metavar="SECONDS",
                     help=f"default {RESTART_WINDOW_SECONDS:.0f}")
    run.add_argument("--spare", action=argparse.BooleanOptionalAction, default=True,
                     help="keep a process that has imported everything for the next worker that dies (default)")
    run.add_argument("--preload", action="append", metavar="MODULE",
                     help="what the spare imports (default: what the script's import lines name); may be repeated")
    run.add_argument("--only-sets", action="store_true",
                     help="the script trains no job of the server's and only calls collectives, as with recon.hvd: it is "
                          "done when all workers have ended well")
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    return main


def join_server_args(words: list[str]) -> list[str]:
    """Lets --server-args take a value that begins with a dash."""
    if "--server-args" not in words[:-1]:
        return words
    at = words.index("--server-args")
    return [*words[:at], f"--server-args={words[at + 1]}", *join_server_args(words[at + 2:])]


def options_of(words: list[str]) -> argparse.Namespace:
    parse = parser()
    options = parse.parse_args(join_server_args(words))
    if options.workers < 1:
        parse.error(f"--workers {options.workers}: there has to be one at least")
    if options.restarts < 0 or options.restart_window <= 0:
        parse.error("--restarts must not be negative, and --restart-window must be positive")
    if not options.module and not os.path.isfile(options.script):
        parse.error(f"{options.script}: there is no such file")
    options.program = Program(options.script, options.module, options.arguments, options.preload)
    options.server_flags = [flag for text in options.server_args for flag in shlex.split(text)]
    if options.server:
        if options.data or options.server_flags or options.listen:
            parse.error("--data, --listen and --server-args are for a server that is started here, "
                        f"not for {options.server}")
        return options
    options.server_program = find_program("recon-server")
    if options.server_program is None:
        parse.error("there is no recon-server in RECON_BIN, in this package or in PATH; --server names one that runs")
    if "--workers-min" not in " ".join(options.server_flags) and "RECON_WORKERS_MIN" not in os.environ:
        options.server_flags += ["--workers-min", str(options.workers)]
    if options.data is None:
        now = datetime.datetime.now()
        stem = pathlib.Path(options.script).stem
        options.data = pathlib.Path("recon-jobs") / f"{stem}-{now:%Y%m%d-%H%M%S}"
    return options


def main(words: list[str] | None = None) -> int:
    launcher = Launcher(options_of(sys.argv[1:] if words is None else words))
    return launcher.run()
