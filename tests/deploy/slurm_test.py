#!/usr/bin/env python3
"""deploy/slurm/recon.sbatch on a real Slurm cluster: slurmctld, six slurmd and munged run on loopback, as the calling
user, with their configuration and state in a temporary directory. A worker's node is drained and the server's node dies
in mid-run; the job ends at the wanted data epochs, and every sample was completed once.

Usage: slurm_test.py --bin DIR [unittest's arguments]. Exits with 77 where Slurm is not installed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo import samples_completed_once  # noqa: E402

# Debian has the daemons in /usr/sbin, which is not in every user's PATH.
os.environ["PATH"] += os.pathsep + "/usr/sbin"
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "sinfo"]
BIN = pathlib.Path()
WAIT_SECONDS = 120
NODES = 6
SAMPLES = 60000
EPOCHS = 3

CONFIGURATION = """
ClusterName=recon
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
# No control groups: the test may run in a container, and as any user.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=1
SlurmdParameters=config_overrides
KillWait=10
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def eventually(condition: Callable[[], object], what: str) -> object:
    """Waits until the condition holds, and returns what it says."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_SECONDS} s for {what}")
        time.sleep(0.1)
    return value


def free_ports(count: int) -> int:
    """The first of `count` ports of loopback in a row that nobody listens at."""
    for first in range(20000 + os.getpid() % 1000 * 10, 32000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError(f"there are no {count} free ports in a row")


def environment_of(pid: int) -> list[bytes]:
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # It has ended, or is another user's.


def parent_of(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


class Cluster:
    """One controller and nodes; all of it ends with close()."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        first = free_ports(NODES + 1)
        self.configuration = root / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(
            host=socket.gethostname().split(".")[0], user=pwd.getpwuid(os.getuid()).pw_name, root=root, controller=first,
            first=first + 1, last=first + NODES, nodes=NODES))
        for folder in ["state", *(f"spool-node{number}" for number in range(1, NODES + 1))]:
            (root / folder).mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("RECON_", "SLURM_"))}
        self.environment |= {"SLURM_CONF": str(self.configuration), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def start(self) -> None:
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.daemon("munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}",
                    *(f"--{what}={self.root}/munge.{what.split('-')[0]}"
                      for what in ["socket", "pid-file", "log-file", "seed-file"]))
        eventually((self.root / "munge.socket").exists, "munged")
        self.daemon("slurmctld", "-D", "-c")
        for number in range(1, NODES + 1):
            self.daemon("slurmd", "-D", "-N", f"node{number}", name=f"node{number}")
        eventually(lambda: self.idle() == NODES, "all nodes")

    def daemon(self, program: str, *arguments: str, name: str = "") -> None:
        name = name or program
        with open(self.root / f"{name}.out", "wb") as out:
            self.daemons[name] = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  env=self.environment)

    def do(self, *command: object) -> str:
        done = subprocess.run([str(word) for word in command], env=self.environment, cwd=self.root, capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def idle(self) -> int:
        done = subprocess.run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], env=self.environment, capture_output=True,
                              text=True)
        return len(done.stdout.split())

    def tasks(self) -> dict[str, tuple[str, str]]:
        """State and node of each task that has not ended."""
        lines = self.do("squeue", "-h", "-r", "-o", "%i|%T|%N").split()
        return {task: (state, node) for task, state, node in (line.split("|") for line in lines)}

    def node_of(self, task: str) -> str:
        return str(eventually(lambda: next((node for name, (state, node) in self.tasks().items()
                                            if name == task and state == "RUNNING"), ""), f"{task} on a node"))

    def processes(self) -> list[int]:
        """What the daemons of this cluster have started, and has not ended."""
        daemons = [daemon.pid for daemon in self.daemons.values()]
        mine = b"SLURM_CONF=" + bytes(self.configuration)
        pids = [int(entry.name) for entry in pathlib.Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if pid not in daemons and mine in environment_of(pid)]

    def kill_node(self, name: str) -> None:
        """As if its power had failed: the daemon and everything that it has started die before they can tell anybody."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()
        everything = self.processes()
        tasks = [pid for pid in everything if b"SLURMD_NODENAME=" + name.encode() in environment_of(pid)]
        managers = {parent_of(pid) for pid in tasks} & set(everything) - set(tasks)
        for pid in [*managers, *tasks]:
            os.kill(pid, signal.SIGKILL)
        self.do("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")  # What SlurmdTimeout does.

    def start_now(self, task: str) -> None:
        """Slurm lets a requeued task wait for two minutes."""
        def asked() -> bool:
            done = subprocess.run(["scontrol", "update", f"JobId={task}", "StartTime=now"], env=self.environment,
                                  capture_output=True)
            return done.returncode == 0 and self.tasks().get(task, ("", ""))[0] in ("PENDING", "RUNNING")
        eventually(lambda: self.tasks().get(task, ("", ""))[0] == "PENDING", f"{task} to be queued again")
        eventually(asked, f"{task} to start now")

    def close(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


class Slurm(unittest.TestCase):
    cluster: Cluster
    root: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recon-slurm-", ignore_cleanup_errors=True)
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.cluster = Cluster(cls.root)
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()

    def setUp(self) -> None:
        self.job = self.root / self.id().rsplit(".", 1)[1]

    def submit(self, array: str, step_ms: int, **flags: str) -> str:
        self.cluster.environment |= {f"RECON_{name.upper()}": value for name, value in flags.items()}
        return self.cluster.do(
            "sbatch", "--parsable", f"--array={array}", ROOT / "deploy/slurm/recon.sbatch", self.job, "recon-worker",
            "--data", f"clusters:{SAMPLES},1000,64,4", "--model", "mlp:64-32-4", "--step-ms", step_ms).strip()

    def log(self, task: str) -> str:
        path = self.root / f"recon-{task}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, task: str, pattern: str, count: int = 1) -> re.Match[str]:
        """Waits for the count-th place in a task's log that matches."""
        def found() -> re.Match[str] | None:
            matches = list(re.finditer(pattern, self.log(task), re.MULTILINE))
            return matches[count - 1] if len(matches) >= count else None
        try:
            match = eventually(found, f"{pattern!r} in the log of {task}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log(task)}") from None
        assert isinstance(match, re.Match)
        return match

    def completions(self) -> list[dict]:
        """Of the finished job, by a server on its data."""
        address = self.job / "data/ADDRESS"
        address.unlink()
        server = subprocess.Popen([BIN / "recon-server", "--listen", "127.0.0.1:0", "--data", self.job / "data",
                                   "--data-epochs", str(EPOCHS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: address.exists() and address.read_text().endswith("\n"), "a server on the job's data")
            return json.loads(subprocess.check_output([BIN / "reconctl", "completions", "--json", "--server",
                                                       address.read_text().strip()]))["completions"]
        finally:
            server.kill()
            server.wait()

    def test_a_job_outlives_a_drained_node_and_the_death_of_its_servers_node(self) -> None:
        array = self.submit("0-2", 30, data_epochs=str(EPOCHS), sync="asp")
        server, leaver, stayer = (f"{array}_{task}" for task in range(3))
        for worker in (leaver, stayer):
            self.until(worker, "first push acknowledged")

        # Its node is drained: the worker gets a notice, leaves in good order and goes on elsewhere.
        drained = self.cluster.node_of(leaver)
        self.cluster.do("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
        self.cluster.do("scancel", "--signal=USR1", "--batch", leaver)
        self.until(leaver, r"worker ended with exit code 0, after a notice \(SIGUSR1\)$")
        self.cluster.start_now(leaver)
        self.until(leaver, "first push acknowledged", 2)
        self.assertNotEqual(self.cluster.node_of(leaver), drained)

        # The node of the server dies: Slurm requeues it, and the workers find it where it is then.
        dead = self.cluster.node_of(server)
        before = self.until(server, r"listening on (\S+),")[1]
        self.cluster.kill_node(dead)
        self.cluster.start_now(server)
        now = self.until(server, r"listening on (\S+),", 2)[1]
        self.assertNotEqual(now, before)
        self.assertNotEqual(self.cluster.node_of(server), dead)
        self.until(stayer, f"the server is now at {re.escape(now)}$")

        # What is left would take them long: another one is added, which is fast.
        self.submit("3", 0)
        self.until(server, f"all {EPOCHS} data epochs are completed")

        eventually(lambda: not self.cluster.tasks(), "the end of all tasks")
        self.assertEqual((self.job / "ended").read_text(), "0\n")
        # 137: its server had moved, and the job ended while it was told so.
        for worker in (leaver, stayer):
            self.until(worker, r"worker ended with exit code (0|137)$")
        self.assertTrue(samples_completed_once(self.completions(), EPOCHS, SAMPLES))

    def test_workers_do_not_wait_for_a_server_with_wrong_flags(self) -> None:
        array = self.submit("0-1", 30, sync="sometimes")
        self.until(f"{array}_0", r"^recon-server: .*sometimes")
        eventually(lambda: not self.cluster.tasks(), "the end of all tasks")
        self.assertEqual((self.job / "ended").read_text(), "2\n")


def main() -> int:
    if "--bin" not in sys.argv:
        print(__doc__)
        return 2
    at = sys.argv.index("--bin")
    global BIN
    BIN = pathlib.Path(sys.argv[at + 1]).resolve()
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print(f"SKIP: Slurm is not installed ({', '.join(missing)}): tools/setup.sh --tests installs it")
        return 77
    del sys.argv[at:at + 2]
    unittest.main(verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
