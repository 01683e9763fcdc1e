"""recon.torch against plain PyTorch, and against what kills processes. Environment: RECON_TEST_BIN, the programs;
RECON_TEST_ROUNDS, how often something is killed."""

import json
import os
import pathlib
import random
import re
import signal
import time
import unittest

import numpy as np

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
from torch.nn import functional

import train_small
from jobs import Script, Server, wait_for

BINARIES = os.environ["RECON_TEST_BIN"]
ROUNDS = int(os.environ.get("RECON_TEST_ROUNDS", "6"))
# So that a job outlasts what is killed in it.
KILL_PASSES = max(3, ROUNDS // 4)
SYNCHRONOUS = json.dumps({"sync": "bsp", "seed": 7})
EXACT = json.dumps({"codec": "fp32", "pull_codec": "fp32"})


def steps_of(paths: list[pathlib.Path]) -> dict[int, list[dict]]:
    """By step: what each worker that took part gave, in the order of the sum."""
    steps: dict[int, list[dict]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            step, given = json.loads(line)
            steps.setdefault(step, []).append(given)
    return {step: sorted(given, key=lambda one: one["order"]) for step, given in sorted(steps.items())}


def train_plainly(optimizer_name: str, norm: str, samples: int, steps: dict[int, list[dict]], clip: float = 0.0) -> dict:
    """What PyTorch alone makes of the same steps: the mean over the union of the workers' batches."""
    model = train_small.make_model(norm)
    optimizer = train_small.make_optimizer(optimizer_name, model)
    scheduler = train_small.make_scheduler(optimizer)
    x, y = train_small.make_data(samples).tensors
    for given in steps.values():
        indices = torch.tensor([index for one in given for index in one["samples"]])
        # The rate of the batch that comes first in the pass.
        train_small.set_rates(scheduler, given[0]["scheduled"])
        optimizer.zero_grad()
        functional.cross_entropy(model(x[indices]), y[indices]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


def distance(a: dict, b: dict) -> float:
    """The largest difference of a tensor, by its norm."""
    return max(float((a[name].double() - b[name].double()).norm() / b[name].double().norm().clamp(min=1e-6))
               for name in b)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only its exit code, which nobody has asked for."""
    try:
        return "\nState:\tZ" not in pathlib.Path("/proc", str(pid), "status").read_text()
    except FileNotFoundError:
        return False


class Equality(unittest.TestCase):
    def run_synchronously(self, optimizer: str, norm: str, workers: int, kill_server: bool = False):
        with Server(BINARIES, "--workers-min", str(workers), "--snapshot-interval", "500ms") as server:
            paths = [server.root / f"steps{i}" for i in range(workers)]
            states = [server.root / f"state{i}" for i in range(workers)]
            scripts = [Script(server, f"w{i}", "--optimizer", optimizer, "--norm", norm, "--epochs", "2", "--job",
                              SYNCHRONOUS, "--worker", EXACT, "--steps-to", str(paths[i]), "--state-to",
                              str(states[i])) for i in range(workers)]
            if kill_server:
                wait_for("a third of the steps", lambda: paths[0].exists() and paths[0].read_text().count("\n") > 20)
                server.kill()
                server.start()
            for script in scripts:
                self.assertEqual(script.wait(), 0, script.log())
            root = server.status()["snapshot"]["state_root"]
            return steps_of(paths), torch.load(states[0]), root

    def test_one_worker_trains_as_pytorch_alone(self) -> None:
        for optimizer in ("sgd", "nesterov", "adam", "adamw"):
            with self.subTest(optimizer=optimizer):
                steps, state, _ = self.run_synchronously(optimizer, "batch", 1)
                self.assertGreater(len(steps), 200)
                plain = train_plainly(optimizer, "batch", 6000, steps)
                self.assertLess(distance(state, plain), 1e-5)

    def test_three_workers_train_as_pytorch_on_the_union_of_their_batches(self) -> None:
        for optimizer in ("nesterov", "adamw"):
            with self.subTest(optimizer=optimizer):
                steps, state, _ = self.run_synchronously(optimizer, "layer", 3)
                self.assertGreater(max(len(given) for given in steps.values()), 2)
                # The schedule is of all batches, though a step has three.
                scheduled = [one["scheduled"] for given in steps.values() for one in given]
                self.assertGreater(max(scheduled), 0.9 * 2 * 6000 / 50)
                self.assertLess(max(scheduled), 2 * 6000 / 50)
                plain = train_plainly(optimizer, "layer", 6000, steps)
                self.assertLess(distance(state, plain), 1e-5)

    def member(self, server: Server, rank: int, size: int, *arguments: str) -> Script:
        """One process of a worker that has several."""
        return Script(server, f"group{rank}", "--job", SYNCHRONOUS, "--worker", EXACT, "--state-to",
                      str(server.root / f"group state{rank}"), "--member", str(rank), str(size), str(server.root / "store"),
                      *arguments)

    def test_a_worker_that_is_a_group_of_processes_trains_as_one(self) -> None:
        # 50 samples are 17, 17 and 16, and the last one is 1, 0 and 0; beside a worker that is one process.
        for optimizer, others, clip in (("nesterov", 0, 0.3), ("adamw", 1, 0.0)):
            with self.subTest(optimizer=optimizer), Server(BINARIES, "--workers-min", str(1 + others)) as server:
                arguments = ("--optimizer", optimizer, "--norm", "layer", "--epochs", "2", "--samples", "2001", "--clip",
                             str(clip))
                paths = [server.root / f"steps{i}" for i in range(1 + others)]
                scripts = [Script(server, "w1", *arguments, "--job", SYNCHRONOUS, "--worker", EXACT, "--steps-to",
                                  str(paths[1])) for _ in range(others)]
                scripts += [self.member(server, rank, 3, *arguments, *(("--steps-to", str(paths[0])) if rank == 0 else ()))
                            for rank in range(3)]
                for script in scripts:
                    self.assertEqual(script.wait(), 0, script.log())
                steps = steps_of(paths)
                self.assertEqual(sum(len(one["samples"]) for given in steps.values() for one in given), 2 * 2001)
                plain = train_plainly(optimizer, "layer", 2001, steps, clip)
                for rank in range(3):
                    self.assertLess(distance(torch.load(server.root / f"group state{rank}"), plain), 1e-5)
                self.assertEqual({split["worker"] for split in server.completions()},
                                 {"group0"} | {"w1" for _ in range(others)})

    def test_processes_of_a_group_that_part_or_differ_are_told(self) -> None:
        for second, error, codes in ((("--wrong", "pulls alone"), "the first process of this worker's group is at 'begin_evaluation'", 1),
                                     (("--batch", "40"), "process 1 has another batch_size than process 0", 2)):
            with self.subTest(error=error), Server(BINARIES) as server:
                scripts = [self.member(server, rank, 2, "--norm", "layer", *(second if rank == 1 or "--wrong" in second else ()))
                           for rank in range(2)]
                for script in scripts:
                    self.assertNotEqual(script.wait(), 0)
                self.assertEqual(sum(error in script.log() for script in scripts), codes, scripts[1].log())

    def test_a_group_whose_processes_die_ends_and_starts_again_together(self) -> None:
        with Server(BINARIES, "--snapshot-interval", "300ms") as server:
            arguments = ("--norm", "layer", "--samples", "4000")
            first = [self.member(server, rank, 2, *arguments, *(("--wrong", "dies later") if rank == 1 else ()))
                     for rank in range(2)]
            self.assertEqual(first[1].wait(), -signal.SIGKILL)
            self.assertNotEqual(first[0].wait(), 0, first[0].log())
            (server.root / "store").unlink()
            for script in [self.member(server, rank, 2, *arguments) for rank in range(2)]:
                self.assertEqual(script.wait(), 0, script.log())
            self.assertEqual(server.phase(), "PHASE_FINISHED")

    def test_two_runs_of_one_seed_end_in_one_state_though_the_server_is_killed(self) -> None:
        roots = [self.run_synchronously("adamw", "layer", 1, kill_server=killed)[2] for killed in (False, True)]
        self.assertEqual(roots[0], roots[1])


class LocalSteps(unittest.TestCase):
    def train(self, optimizer: str, workers: int, **job: object) -> dict:
        with Server(BINARIES, "--workers-min", str(workers)) as server:
            scripts = [Script(server, f"w{i}", "--optimizer", optimizer, "--epochs", "3", "--job", json.dumps(job))
                       for i in range(workers)]
            for script in scripts:
                self.assertEqual(script.wait(), 0, script.log())
            return server.status()

    def test_so_it_does_on_a_worker_that_is_a_group(self) -> None:
        with Server(BINARIES) as server:
            scripts = [Script(server, f"w{i}", "--optimizer", "rmsprop", "--epochs", "3", "--member", str(i), "2",
                              str(server.root / "store"), "--state-to", str(server.root / f"state{i}")) for i in range(2)]
            for script in scripts:
                self.assertEqual(script.wait(), 0, script.log())
            self.assertGreater(server.status()["evaluations"][-1]["accuracy"], 0.9)
            self.assertEqual(distance(*(torch.load(server.root / f"state{i}") for i in range(2))), 0)

    def test_an_optimizer_that_the_server_has_not_steps_on_the_worker(self) -> None:
        status = self.train("rmsprop", 2)
        self.assertEqual(status["job"]["local"]["steps"], 8)
        self.assertGreater(status["evaluations"][-1]["accuracy"], 0.9)

    def test_one_that_it_has_steps_there_too_where_the_policy_says_so(self) -> None:
        status = self.train("adamw", 2, sync="diloco:10")
        self.assertEqual(status["job"]["local"]["steps"], 10)
        self.assertGreater(status["evaluations"][-1]["accuracy"], 0.9)


class Kills(unittest.TestCase):
    def test_every_sample_is_computed_once_whoever_dies(self) -> None:
        choice = random.Random(os.environ.get("RECON_TEST_SEED", str(time.time_ns())))
        with Server(BINARIES, "--snapshot-interval", "300ms") as server:
            arguments = ("--optimizer", "adamw", "--epochs", str(KILL_PASSES), "--samples", "30000", "--workers", "1")
            scripts = {name: Script(server, name, *arguments) for name in ("a", "b")}
            wait_for("the job", lambda: server.phase() == "PHASE_RUNNING")
            for number in range(ROUNDS):
                before = int(server.status()["samples_completed"])
                wait_for("progress", lambda: int(server.status()["samples_completed"]) > before
                         or server.phase() == "PHASE_FINISHED")
                self.assertNotEqual(server.phase(), "PHASE_FINISHED", f"the job was done before round {number}")
                if choice.random() < 0.4:
                    server.kill()
                    server.start()
                    continue
                name = choice.choice(list(scripts))
                scripts.pop(name).kill()
                scripts[f"{name[0]}{number}"] = Script(server, f"{name[0]}{number}", *arguments)
            for script in scripts.values():
                self.assertEqual(script.wait(), 0, script.log())
            counted = np.zeros((KILL_PASSES, 30000), int)
            for completion in server.completions():
                if completion["kind"] == "LEASE_TRAIN":
                    counted[completion["data_epoch"] - 1, int(completion["begin"]):int(completion["end"])] += 1
            self.assertTrue((counted == 1).all())
            self.assertGreater(server.status()["evaluations"][-1]["accuracy"], 0.8)

    def test_a_process_that_loads_data_ends_though_its_worker_dies_as_it_starts(self) -> None:
        with Server(BINARIES) as server:
            script = Script(server, "w", "--workers", "1", "--wrong", "dies")
            self.assertEqual(script.wait(), -signal.SIGKILL, script.log())
            loading = int(re.search(r"a loading process: (\d+)", script.log())[1])
            try:
                wait_for("the end of what loads data", lambda: not is_running(loading), seconds=30)
            finally:
                if is_running(loading):
                    os.kill(loading, signal.SIGKILL)


class Exports(unittest.TestCase):
    def test_an_export_is_what_the_model_loads_strictly(self) -> None:
        with Server(BINARIES) as server:
            state = server.root / "state"
            script = Script(server, "w", "--optimizer", "adamw", "--epochs", "1", "--state-to", str(state),
                            "--worker", EXACT)
            self.assertEqual(script.wait(), 0, script.log())
            evaluation = server.status()["evaluations"][-1]
            self.assertIn("confidence", evaluation["metrics"])
            server.drain()
            server.reconctl("snapshot", "export", str(server.data / "snapshots"), "--output",
                            str(server.root / "model.safetensors"))
            exported = load_file(server.root / "model.safetensors")
            model = train_small.make_model("batch")
            model.load_state_dict(exported, strict=True)
            final = torch.load(state)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, final[name]), name)


class Mistakes(unittest.TestCase):
    def expect(self, text: str, *arguments: str, after: tuple[str, ...] = ()) -> None:
        with Server(BINARIES, "--workers-min", "1") as server:
            first = Script(server, "first", *after) if after else None
            if first is not None:
                wait_for("the first worker", lambda: server.phase() == "PHASE_RUNNING")
            script = Script(server, "w", *arguments)
            self.assertNotEqual(script.wait(), 0)
            self.assertIn(text, script.log())
            if first is not None:
                first.kill()

    def test_a_script_that_is_wrong_is_told_what_and_where(self) -> None:
        long = ("--epochs", "50", "--samples", "60000")
        self.expect("join once", "--wrong", "joins twice")
        self.expect("step() without backward()", "--wrong", "no backward")
        self.expect("1 gradient values are infinite or not a number", "--wrong", "nan gradient")
        self.expect("tensor 3.weight has shape [11,64] instead of [10,64]", "--wrong", "other shapes", *long, after=long)
        self.expect("--batch 64 instead of 50", "--batch", "64", *long, after=long)
        self.expect("--optimizer nesterov instead of sgd", "--optimizer", "nesterov", *long, after=long)
        self.expect("the worker has 500 training samples, the job has 60000", "--samples", "500", "--epochs", "50",
                    after=long)


if __name__ == "__main__":
    unittest.main(verbosity=2)
