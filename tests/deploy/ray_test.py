#!/usr/bin/env python3
"""recon.ray on a real Ray cluster of several raylets on this machine: the node of a worker and the node of the server are
killed in mid-run; the job ends at the wanted data epochs, and every sample was completed once.

Usage: ray_test.py --bin DIR [unittest's arguments]. Exits with 77 where Ray is not installed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
# Without the package's extension module: this Python may have none.
PACKAGE = tempfile.TemporaryDirectory(prefix="recon-ray-package-")
pathlib.Path(PACKAGE.name, "recon").mkdir()
for part in ("ray.py", "_objects.py", "_environment.py", "launch"):
    pathlib.Path(PACKAGE.name, "recon", part).symlink_to(ROOT / "worker/python/recon" / part)
sys.path.insert(0, PACKAGE.name)

from demo import samples_completed_once  # noqa: E402

BIN = pathlib.Path()
WAIT_SECONDS = 120
SAMPLES = 60000
EPOCHS = 3


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Waits until the condition holds, and returns what it says."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_SECONDS} s for {what}")
        time.sleep(0.1)
    return value


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def worker(step_ms: int) -> list[str]:
    return [str(BIN / "recon-worker"), "--data", f"clusters:{SAMPLES},1000,64,4", "--model", "mlp:64-32-4", "--step-ms",
            str(step_ms)]


def completions(data: pathlib.Path) -> list[dict]:
    """Of a finished job, by a server on its data."""
    address = data / "ADDRESS"
    address.unlink()
    server = subprocess.Popen([BIN / "recon-server", "--listen", "127.0.0.1:0", "--data", data, "--data-epochs",
                               str(EPOCHS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: address.exists() and address.read_text().endswith("\n"), "a server on the job's data")
        return json.loads(subprocess.check_output([BIN / "reconctl", "completions", "--json", "--server",
                                                   address.read_text().strip()]))["completions"]
    finally:
        server.kill()
        server.wait()


def processes_of(node: Any) -> list[int]:
    """The processes that a node's raylet has started, and theirs."""
    raylet = node.all_processes["raylet"][0].process.pid
    word = b"RAY_RAYLET_PID=" + str(raylet).encode()
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


class Nodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)  # Short: sockets' paths are in it.
        cls.addClassCleanup(folder.cleanup)
        # Ray writes the cluster's address into a folder that it does not make, and that others may have made.
        os.environ["RAY_TMPDIR"] = folder.name
        pathlib.Path(folder.name, "ray").mkdir()
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.shutdown)
        cls.addClassCleanup(ray.shutdown)
        # A node that is gone is missed after 4 s. (Who does not answer at all is, after 12 s.)
        cls.add_node(num_cpus=0, include_dashboard=False, temp_dir=folder.name, _system_config={
            "health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_timeout_ms": 3000,
            "health_check_failure_threshold": 4})
        cls.servers = [cls.add_node(resources={"server": 1})]
        cls.workers = [cls.add_node(resources={"worker": 1}) for _ in range(2)]
        ray.init(address=cls.cluster.address, log_to_driver=False, configure_logging=False)

    @classmethod
    def add_node(cls, **what: Any) -> Any:
        """Its agents' ports are given: otherwise the raylet dies when they have not chosen any within 15 s, which a busy
        machine takes to import them."""
        agents = ["metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port"]
        try:
            return cls.cluster.add_node(**{"num_cpus": 1, "object_store_memory": 80 << 20, **what},
                                        **dict(zip(agents, free_ports(len(agents)))))
        except Exception as error:
            # For one of its agents it waits 15 s all the same, and then ends itself.
            if "timed out during startup" in str(error):
                raise unittest.SkipTest(f"Ray does not start on a machine as busy as this one: {error}") from error
            raise

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recon-ray-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.data = pathlib.Path(folder.name, "data")

    def job(self, *server_flags: str) -> Any:
        return recon.ray.Job(
            worker(30), data=self.data, workers=2, server_flags=["--data-epochs", str(EPOCHS), *server_flags],
            server_options={"resources": {"server": 1}}, worker_options={"resources": {"worker": 1}},
            environment={"RECON_BIN": str(BIN), "RECON_INSECURE": "1"})

    def kill(self, node: Any) -> None:
        """As if its power had failed: all of it dies at once."""
        pids = processes_of(node)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def stepping(self, job: Any, count: int, epoch: int) -> bool:
        """Whether so many workers have made steps with a server of that cluster epoch."""
        status = job.status()
        return status.get("cluster_epoch") == epoch and count == sum(
            member["state"] == "MEMBER_ACTIVE" and member["progress"]["steps"] > 0 for member in status["members"])

    def test_a_job_outlives_the_nodes_of_a_worker_and_of_its_server(self) -> None:
        job = self.job()
        eventually(lambda: self.stepping(job, 2, 1), "two workers that train")
        first = job.address()

        self.kill(self.workers[0])
        self.kill(self.servers[0])
        self.add_node(resources={"worker": 1})
        self.add_node(resources={"server": 1})
        eventually(lambda: self.stepping(job, 2, 2), "both workers at the server's new address")
        self.assertNotEqual(job.address(), first)

        # What is left would take them long: another one is added, which is fast.
        self.add_node(resources={"worker": 1})
        fast = worker(0)
        job.add_workers(1, worker=lambda: os.execv(fast[0], fast))
        status = job.wait()
        self.assertEqual((status["phase"], status["data_epochs_completed"]), ("PHASE_FINISHED", EPOCHS))
        self.assertTrue(samples_completed_once(completions(self.data), EPOCHS, SAMPLES))

    def test_a_server_with_wrong_flags_ends_the_job(self) -> None:
        with self.assertRaisesRegex(recon.ray.JobFailed, "recon-server ended with exit code 2: .*sometimes"):
            self.job("--sync", "sometimes").wait()


def main() -> int:
    if "--bin" not in sys.argv:
        print(__doc__)
        return 2
    at = sys.argv.index("--bin")
    global BIN
    BIN = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at:at + 2]
    # Nodes are processes of this machine, and actors import the package from where the driver does.
    os.environ["PYTHONPATH"] = PACKAGE.name
    os.environ["RAY_raylet_start_wait_time_s"] = "60"
    try:
        global Cluster, ray, recon
        import ray
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        print("SKIP: Ray is not installed in this Python (pip install ray)")
        return 77
    import recon.ray
    result = unittest.main(verbosity=2, exit=False).result
    return 77 if result.skipped and result.wasSuccessful() else not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
