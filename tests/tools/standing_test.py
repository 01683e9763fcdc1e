#!/usr/bin/env python3
"""A job of three servers and four workers in which one process after the other is stopped or killed: status, metric, and the log
of every process that waits name it. So do they when a server has no network or no room on its disk (as root; skipped otherwise).
Usage: standing_test.py --bin FOLDER [--all]; without --all one process of each kind."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path()
SERVERS = ("head", "server1", "server2")
WORKERS = ("w0", "w1", "w2", "w3")
# On a machine with nothing else to do it takes 15 s at most.
PATIENCE_SECONDS = 90.0
APART = "server1"  # It is the server whose network or disk is not that of the others.
HOST, HOST_APART = "10.99.0.1", "10.99.0.2"  # The ends of the link between its network and theirs have these addresses.
DISK_BYTES = 64 << 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def eventually(what: str, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come within {seconds:.0f} s: {what}")
        time.sleep(0.1)  # Between looks.
    return value


def run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextlib.contextmanager
def network_apart() -> Iterator[list[str]]:
    """What begins a command that runs in a network namespace of its own, with a link to this one."""
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as holder:
        eventually("its own network", lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        run(f"ip link add outer type veth peer name inner netns {holder.pid}")
        within = ["nsenter", "-t", str(holder.pid), "-n"]
        for prefix, host, device in (("", HOST, "outer"), (" ".join(within) + " ", HOST_APART, "inner")):
            run(f"{prefix}ip addr add {host}/24 dev {device}")
            run(f"{prefix}ip link set {device} up")
        run(f"{' '.join(within)} ip link set lo up")
        yield within  # The holder ends with its standard input.


class Job:
    """Processes with fixed ports, so that one that is started again is where it was. With ``apart``, a `network_apart`, one server is
    there."""

    def __init__(self, folder: pathlib.Path, wide: bool = False, apart: list[str] | None = None):
        self.folder = folder
        self.apart = apart or []
        self.open = ["--insecure"] if apart else []
        # Each server has a part of either model; a push of the wide one has a megabyte for each.
        self.model = ["--model", "mlp:16-60000-4"] if wide else ["--model", "mlp:16-8000-4", "--step-ms", "20"]
        self.wide = wide
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in (*SERVERS, "metrics")}
        self.marks: dict[str, int] = {}

    def address(self, name: str) -> str:
        host = "127.0.0.1" if not self.apart or name == "metrics" else HOST_APART if name == APART else HOST
        return f"{host}:{self.ports[name]}"

    def start(self, name: str) -> None:
        if name in WORKERS:
            # Two by shared memory, two by the network.
            command = ["recon-worker", "--server", self.address("head"), "--name", name, "--data", "clusters:4000,500,16,4",
                       "--device", "cpu", "--transport", "grpc" if self.wide or name in WORKERS[2:] else "auto", *self.model, *self.open]
        else:
            command = ["recon-server", "--data", self.folder / name, "--listen", self.address(name), *self.open]
            # Nobody is given up: who is stopped, and who is dead, is waited for.
            command += ["--servers", "3", "--sync", "bsp", "--workers-min", "4", "--data-epochs", "100000", "--evict-after", "10m",
                        "--lease-duration", "20m", "--batch", "20", "--split-samples", "200", "--learning-rate", "0.003",
                        "--metrics-address", self.ports["metrics"]] if name == "head" else ["--join", self.address("head")]
        command = [str(BIN / command[0]), *map(str, command[1:])]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([*(self.apart if name == APART else []), *command], stdout=log, stderr=log)

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.processes.pop(name).wait(60)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def log(self, name: str) -> str:
        """What it has said since mark()."""
        path = self.folder / f"{name}.log"
        return path.read_bytes()[self.marks.get(name, 0):].decode(errors="replace") if path.exists() else ""

    def mark(self) -> None:
        self.marks = {path.stem: path.stat().st_size for path in self.folder.glob("*.log")}

    def status(self) -> dict[str, Any]:
        done = subprocess.run([BIN / "reconctl", "status", "--server", self.address("head"), "--json", *self.open], capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def status_text(self) -> str:
        return subprocess.run([BIN / "reconctl", "status", "--server", self.address("head"), *self.open], capture_output=True, text=True).stdout

    def standing(self) -> float:
        with urllib.request.urlopen(f"http://{self.address('metrics')}/metrics", timeout=30) as answer:
            found = re.search(r"^recon_server_standing_seconds (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found, "no metric recon_server_standing_seconds"
        return float(found[1])

    def await_movement(self) -> None:
        before = self.status().get("samples_completed", 0)
        eventually("the job moves", lambda: self.status().get("samples_completed", 0) > before + 400)
        eventually("nobody says that it stands", lambda: self.standing() == 0)
        # Who has not come back yet would not be waited for.
        eventually("all workers take part", lambda: sum(one["state"] == "MEMBER_ACTIVE" for one in self.status().get("members", [])) == len(WORKERS))


def wants(job: Job, victim: str) -> dict[str, Callable[[], bool]]:
    """What is to come when `victim` is stopped or has been killed."""
    waiting = [name for name in (*SERVERS, *WORKERS) if name != victim]
    if victim == "head":
        head = job.address("head")
        # Who is stopped or killed cannot be told apart, nor need it be.
        return {f"{name} says so": (lambda name=name: re.search(
            rf"the head at {head}(, which)?( cannot be reached for|, silent for|, which cannot be reached for) [1-9]", job.log(name)) is not None)
                for name in waiting}
    says = f"{victim} (" if victim in WORKERS else f"server {victim[-1]} at {job.address(victim)}"
    found: dict[str, Callable[[], bool]] = {
        "status": lambda: job.status().get("standing_seconds", 0) > 0 and says in job.status().get("waits_for", ""),
        "status as text": lambda: re.search(r"^STANDS     for \d+s: it waits for .*" + re.escape(says), job.status_text(), re.MULTILINE) is not None,
        "metric": lambda: job.standing() >= 10,
    }
    for name in waiting:
        found[f"{name} says so"] = lambda name=name: says in "\n".join(
            line for line in job.log(name).splitlines() if "the job has not moved for" in line)
    return found


def await_all(case: str, missing: dict[str, Callable[[], bool]]) -> None:
    began = time.monotonic()
    while missing:
        missing = {what: condition for what, condition in missing.items() if not condition()}
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise AssertionError(f"{case}: not within {PATIENCE_SECONDS:.0f} s: {', '.join(missing)}")
        time.sleep(0.1)  # Between looks.
    print(f"ok   {case}: all say so after {time.monotonic() - began:.1f} s", flush=True)


def one_case(job: Job, victim: str, number: int) -> None:
    job.mark()
    job.signal(victim, number)
    await_all(f"{signal.Signals(number).name} of {victim}", wants(job, victim))
    if number == signal.SIGSTOP:
        job.signal(victim, signal.SIGCONT)
    else:
        job.start(victim)
    job.await_movement()


def case_no_network() -> None:
    """A server's link is cut: nobody hears it, and it hears nobody."""
    os.environ["RECON_TOKEN"] = secrets.token_hex(16)  # Nobody finds the job's beyond loopback.
    with network_apart() as within, running_job(apart=within) as job:
        job.mark()
        run(f"{' '.join(within)} ip link set inner down")
        head = re.escape(job.address("head"))
        says = {f"{APART} says so": lambda: re.search(rf"the head at {head}, silent for|the head at {head} cannot be reached", job.log(APART)) is not None}
        await_all(f"no network for {APART}", {**wants(job, APART), **says})
        run(f"{' '.join(within)} ip link set inner up")
        job.await_movement()


def case_no_disk() -> None:
    """The file system of a server's data is full."""
    with tempfile.TemporaryDirectory(prefix="recon-standing-disk-") as disk, contextlib.ExitStack() as undo:
        run(f"mount -t tmpfs -o size={DISK_BYTES},mode=0700 none {disk}")
        undo.callback(run, f"umount {disk}")
        with running_job(disk=pathlib.Path(disk)) as job:
            job.mark()
            others = pathlib.Path(disk) / "others"
            with contextlib.suppress(OSError), open(others, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
            says = {f"{APART} says so": lambda: "its disk is nearly full" in job.log(APART),
                    "status says what is missing": lambda: "its disk is nearly full" in job.status().get("waits_for", "")}
            await_all(f"no room on the disk of {APART}", {**wants(job, APART), **says})
            others.unlink()
            job.await_movement()


# Each in namespaces of its own, for its network and its mounts.
APART_CASES = {"no_network": case_no_network, "no_disk": case_no_disk}


def run_apart(case: str) -> None:
    apart = ["unshare", "--net", "--mount"]
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    if os.geteuid() != 0 or not tools or subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        print(f"SKIP: {case}: it needs root, namespaces, and iproute2", flush=True)
        return
    done = subprocess.run([*apart, sys.executable, __file__, "--bin", str(BIN), "--apart", case])
    assert done.returncode == 0, case


def case_good_order(job: Job) -> None:
    """A server that is stopped in good order is not taken for a dead one, by anybody."""
    job.mark()
    job.signal("server1", signal.SIGTERM)
    says = f"server 1 at {job.address('server1')}, which was stopped in good order"
    eventually("status says that it was stopped", lambda: says in job.status().get("waits_for", ""))
    for name in WORKERS:
        eventually(f"{name} says that it was stopped", lambda name=name: says in job.log(name))
    assert [server["state"] for server in job.status()["servers"]] == ["SERVER_STOPPED", "SERVER_READY"], job.status()["servers"]
    assert "without a word" not in job.log("head"), job.log("head")
    job.start("server1")
    job.await_movement()
    print("ok   SIGTERM of server1: it was stopped in good order", flush=True)


def case_drain(job: Job) -> None:
    """When the job is drained nobody says that a server has gone, and workers know that the head was stopped."""
    job.mark()
    servers = [job.processes[name] for name in SERVERS]
    subprocess.run([BIN / "reconctl", "drain", "--server", job.address("head")], check=True, capture_output=True)
    for server in servers:
        assert server.wait(60) == 0, "a server did not end in good order"
    head = job.log("head")
    assert "has gone without a word" not in head and head.count("has ended with the job") == 2, head
    for name in WORKERS:
        eventually(f"{name} says that the head was stopped", lambda name=name: f"the head at {job.address('head')} was stopped in good order" in job.log(name))
    # The head that comes back says for whom it waits.
    job.start("head")
    eventually("the head says whom it waits for", lambda: "the job has not moved for" in job.log("head"))
    says = re.search(r"it waits for server 1, which has not come since this head began \d+s ago, and for server 2, which has not come",
                     job.log("head"))
    assert says, job.log("head")
    eventually("workers say whom it waits for", lambda: "is there, and says: the job waits for server 1, which has not come" in job.log("w0"))
    job.start("server1")
    job.start("server2")
    job.await_movement()
    print("ok   a drain, and a new head without its servers", flush=True)


def case_known_again(job: Job) -> None:
    """Workers that send their pushes again to a server that was killed are no strangers to it."""
    for victim in ("head", "server1") * 2:
        job.signal(victim, signal.SIGKILL)
        gone = time.monotonic()
        # It is away for so long that all of them try again.
        eventually("the workers have tried for 3 s", lambda: time.monotonic() > gone + 3)
        job.start(victim)
        job.await_movement()
    for name in SERVERS:
        lines = [line for line in job.log(name).splitlines() if "is closed: it has sent" in line]
        assert not lines, f"{name}: {lines}"
    print("ok   servers that come back know their workers again", flush=True)


@contextlib.contextmanager
def running_job(wide: bool = False, apart: list[str] | None = None, disk: pathlib.Path | None = None) -> Iterator[Job]:
    """``disk``: where the data of the server APART is."""
    with tempfile.TemporaryDirectory(prefix="recon-standing-") as folder:
        job = Job(pathlib.Path(folder), wide, apart)
        if disk is not None:
            (job.folder / APART).symlink_to(disk)
            job.model[1] = "mlp:16-24-4"  # Its log is too small to make room for itself: then the job would go on.
        try:
            job.start("head")
            eventually("the head listens", lambda: (pathlib.Path(folder) / "head/ADDRESS").exists())
            for place, name in enumerate(SERVERS[1:]):
                job.start(name)
                # The first that comes has the first place.
                eventually(f"{name} has its place", lambda: [one.get("address") for one in job.status().get("servers", [])[place:]][:1] == [job.address(name)])
            for name in WORKERS:
                job.start(name)
            job.await_movement()
            yield job
        except AssertionError:
            for name in (*SERVERS, *WORKERS):
                print(f"--- {name}\n{job.log(name)[-4000:]}", file=sys.stderr)
            raise
        finally:
            job.close()


def main() -> int:
    global BIN
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--all", action="store_true", help="every process, not one of each kind")
    parser.add_argument("--apart", choices=APART_CASES, help="one case alone, which makes networks and mounts in namespaces around it")
    arguments = parser.parse_args()
    BIN = arguments.bin.resolve()
    if arguments.apart:
        run("ip link set lo up")
        APART_CASES[arguments.apart]()
        return 0
    with running_job() as job:
        for victim in (*SERVERS, *WORKERS) if arguments.all else ("server1", "head", "w0"):
            for number in (signal.SIGSTOP, signal.SIGKILL):
                one_case(job, victim, number)
        case_good_order(job)
        case_drain(job)
    with running_job(wide=True) as job:
        case_known_again(job)
    for case in APART_CASES:
        run_apart(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
