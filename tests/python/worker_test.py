"""recon.Worker, which knows NumPy alone: the smallest example, and what it says of wrong use."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest
import unittest.mock

import numpy as np

import recon
from recon._environment import loopback, say_whose_job
from jobs import HERE, Server, wait_for

BINARIES = os.environ["RECON_TEST_BIN"]
EXAMPLE = HERE.parents[1] / "worker/python/examples/numpy_softmax.py"


def make_worker(server: Server, **options: object) -> recon.Worker:
    start = {"weight": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
    defaults = {"samples": 600, "batch": 20, "epochs": 1, "optimizer": recon.SGD(0.1), "server": server.address}
    return recon.Worker(start, **{**defaults, **options})


class Worker(unittest.TestCase):
    def test_the_smallest_example_learns(self) -> None:
        with Server(BINARIES) as server:
            run = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True,
                                 env={**os.environ, "RECON_SERVER": server.address})
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertGreater(float(run.stdout.split()[-1]), 0.8)
            self.assertLessEqual(len(EXAMPLE.read_text().splitlines()), 45)

    def test_who_joins_others_at_the_usual_port_without_naming_a_server_is_told(self) -> None:
        class Core:
            name = "w7"
            workers = 2

            def job(self) -> dict:
                return {"workers": self.workers}

        def said(settings: dict, environment: dict) -> str:
            with unittest.mock.patch.dict(os.environ, environment), contextlib.redirect_stderr(io.StringIO()) as stderr:
                if not environment:
                    os.environ.pop("RECON_SERVER", None)
                say_whose_job(core, settings, " (torch's seed is 5)")
            return stderr.getvalue()

        core = Core()
        line = said({}, {})
        self.assertEqual(line.count("\n"), 1)
        for text in ("w7 has joined a job with 1 other worker at ", ":7070", "torch's seed is 5", "RECON_SERVER"):
            self.assertIn(text, line)
        self.assertEqual(said({"server": "127.0.0.1:7070"}, {}), "")
        self.assertEqual(said({}, {"RECON_SERVER": "127.0.0.1:7070"}), "")
        core.workers = 1
        self.assertEqual(said({}, {}), "")

    def test_a_machine_without_ipv4_has_a_usual_address_all_the_same(self) -> None:
        self.assertEqual(loopback(7070), "127.0.0.1:7070")
        with unittest.mock.patch("socket.socket.bind", side_effect=OSError(99, "Cannot assign requested address")):
            self.assertEqual(loopback(7070), "[::1]:7070")

    def test_each_sample_comes_once_in_each_pass(self) -> None:
        with Server(BINARIES) as server, make_worker(server, epochs=2) as worker:
            seen = np.zeros(600, int)
            for indices in worker.batches():
                self.assertFalse(worker.parameters()["weight"].flags.writeable)
                seen[indices] += 1
                worker.push({"weight": np.ones((4, 3)), "bias": np.zeros(3)}, lr=0.01)
            self.assertTrue((seen == 2).all())
            # 60 pushes of 1 at the rate that came with them.
            self.assertTrue(np.allclose(worker.parameters()["weight"], -0.6, atol=1e-3))
            self.assertTrue((worker.parameters()["bias"] == 0).all())

    def test_a_job_of_two_servers_takes_the_settings_of_the_script(self) -> None:
        with Server(BINARIES, "--servers", "2") as head, Server(BINARIES, "--join", head.address), make_worker(
                head, epochs=2) as worker:
            for _ in worker.batches():
                worker.push({"weight": np.ones((4, 3))})
            self.assertTrue(np.allclose(worker.parameters()["weight"], -6, atol=1e-3))
            self.assertEqual(int(head.status()["samples_completed"]), 1200)

    def test_a_trace_shows_what_a_script_computes(self) -> None:
        with Server(BINARIES) as server, make_worker(server, epochs=100000) as worker:
            path = server.root / "trace.json"
            batches = worker.batches()
            next(batches)
            worker.push({})
            trace = subprocess.Popen([server.binaries / "reconctl", "trace", "--server", server.address, "--seconds", "0.5",
                                      "-o", path])
            while trace.poll() is None:
                next(batches)
                worker.push({"weight": np.ones((4, 3))}, lr=1e-6)
            self.assertEqual(trace.returncode, 0)
            events = json.loads(path.read_text())["traceEvents"]
            processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
            own = next(pid for pid, name in processes.items() if name.startswith("worker ") and worker.name in name)
            spans = [event for event in events if event["pid"] == own and event["ph"] == "X"]
            self.assertLessEqual({"computing", "encoding", "sending", "waiting for pushes"}, {span["name"] for span in spans})
            computed = [span["args"]["step"] for span in spans if span["name"] == "computing"]
            self.assertGreater(len(computed), 3)
            self.assertEqual(computed, sorted(set(computed)))

    def test_wrong_use_is_named(self) -> None:
        with Server(BINARIES) as server, make_worker(server) as worker:
            batches = worker.batches()
            with self.assertRaisesRegex(RuntimeError, "without a batch"):
                worker.push({})
            next(batches)
            with self.assertRaisesRegex(KeyError, "no parameter is named biases"):
                worker.push({"biases": np.zeros(3)})
            with self.assertRaisesRegex(ValueError, r"shape \(4,\), expected \(3,\)"):
                worker.push({"bias": np.zeros(4)})
            with self.assertRaisesRegex(FloatingPointError, "the loss is nan"):
                worker.push({"bias": np.zeros(3)}, loss=float("nan"))

    def test_what_the_job_does_not_take_is_refused(self) -> None:
        with Server(BINARIES) as server:
            with self.assertRaisesRegex(recon.Refused, "--codec: unknown codec|--codec"):
                make_worker(server, codec="zip")
            with self.assertRaisesRegex(recon.Refused, "--colour"):
                make_worker(server, colour="red")
            with self.assertRaisesRegex(recon.Refused, "--optimizr is no setting of a job"):
                make_worker(server, job_settings={"optimizr": "sgd"})
            with self.assertRaisesRegex(TypeError, "int64"):
                recon.Worker({"n": np.zeros(3, np.int64)}, samples=1, optimizer=recon.SGD(0.1))

    def test_what_a_script_computes_in_is_its_own_affair(self) -> None:
        with Server(BINARIES) as server:
            with self.assertRaisesRegex(recon.Refused, "precision is a setting of recon-worker's own models"):
                make_worker(server, precision="fp16")

    def test_the_gpu_that_a_script_names_is_looked_at(self) -> None:
        # Drivers that are made up; nothing is computed on it.
        script = ("import numpy as np, recon, sys\n"
                  "with recon.Worker({'w': np.zeros(3, np.float32)}, samples=9, optimizer=recon.SGD(.1),\n"
                  "                  device='cuda:0', name='gpu'):\n"
                  "    sys.stdin.read()\n")
        with Server(BINARIES) as server:
            for library in ("libnvidia-ml.so.1", "libcuda.so.1"):
                (server.root / library).symlink_to(pathlib.Path(BINARIES) / "fake_nvml.so")
            environment = {**os.environ, "RECON_SERVER": server.address, "LD_LIBRARY_PATH": str(server.root)}
            with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, env=environment) as process:
                def device() -> dict:
                    try:
                        members = server.status()["members"]
                    except subprocess.CalledProcessError:  # It begins anew with the script's settings.
                        return {}
                    return members[0]["progress"].get("device_status", {}) if members else {}
                try:
                    wait_for("the GPU to be looked at", lambda: device().get("name") == "Made-up GPU")
                    self.assertEqual(device()["source"], "nvml")
                    self.assertEqual(int(device()["memory_total_bytes"]), 80_000_000_000)
                    self.assertEqual(device()["utilization"], 0)
                    self.assertNotIn("power_watts", device())
                    row = next(line for line in server.reconctl("status", "--server", server.address).splitlines()
                               if line.startswith("gpu "))
                    self.assertRegex(row, r"cuda:0 +0 % +0 B of 80.00 GB +- ")
                finally:
                    process.stdin.close()
                self.assertEqual(process.wait(60), 0)

    def test_flags_of_the_server_win_or_are_named(self) -> None:
        with Server(BINARIES, "--batch", "30") as server:
            with self.assertRaisesRegex(recon.Refused, "--batch 20 instead of 30"):
                make_worker(server)
            with make_worker(server, batch=30) as worker:
                self.assertEqual(len(next(worker.batches())), 30)

    def test_a_server_that_is_not_there_is_a_lost_job(self) -> None:
        with Server(BINARIES) as server:
            server.kill()
            with self.assertRaisesRegex(recon.JobLost, "has not answered"):
                make_worker(server, reconnect_for="1s")

    def test_control_c_ends_a_wait(self) -> None:
        script = ("import numpy as np, recon, os, threading, signal\n"
                  "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
                  "try:\n"
                  "    recon.Worker({'w': np.zeros(3)}, samples=9, optimizer=recon.SGD(.1), server='127.0.0.1:1')\n"
                  "except KeyboardInterrupt:\n"
                  "    print('interrupted')\n")
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        self.assertIn("interrupted", run.stdout, run.stderr)

    def test_settings_outlive_the_server(self) -> None:
        with Server(BINARIES) as server:
            worker = make_worker(server, epochs=1, samples=6000)
            batches = worker.batches()
            next(batches)
            worker.push({"bias": np.ones(3)})
            server.kill()
            server.start()
            wait_for("the job to be known again", lambda: server.status()["job"]["batch_samples"] == 20)
            self.assertIn("sgd", server.status()["optimizer"])
            for _ in batches:
                worker.push({"bias": np.ones(3)})
            worker.leave()
            self.assertEqual(int(server.status()["samples_completed"]), 6000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
