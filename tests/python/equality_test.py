"""ResNet-18 and a GPT train in a job as in plain PyTorch, with one worker and with three. Environment: RECON_TEST_BIN,
the programs; RECON_TEST_FULL=1, models of full width, and every optimizer with three workers, too (an hour and more)."""

import contextlib
import json
import os
import pathlib
import unittest

import numpy as np

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None

import train_models
import train_small
from jobs import Script, Server, wait_for

BINARIES = os.environ["RECON_TEST_BIN"]
FULL = os.environ.get("RECON_TEST_FULL") == "1"
SIZE_NAME = "full" if FULL else "small"
SIZE = train_models.SIZES[SIZE_NAME]
OPTIMIZERS = ("sgd", "nesterov", "adam", "adamw")
STEPS = 200
# Of the norm of a tensor.
TENSOR_MAX = 1e-5
# Of how far a step moves all parameters together: sums in another order are off by less.
MOVEMENT_MAX = 1e-3
JOB = json.dumps({"sync": "bsp", "seed": 7})
WORKER = json.dumps({"codec": "fp32", "pull_codec": "fp32"})


class Plain:
    """PyTorch alone, on the workers' batches: the mean of their gradients, and of their buffers."""

    def __init__(self, run: dict) -> None:
        self.model = train_models.make_model(run["model"], SIZE)
        self.optimizer = train_small.make_optimizer(run["optimizer"], self.model)
        self.scheduler = train_small.make_scheduler(self.optimizer)
        self.x, self.y = train_models.make_data(run["model"], SIZE, run["samples"]).tensors

    def step(self, given: list[dict]) -> None:
        batches = [one["samples"] for one in given]
        # The rate of the batch that comes first in the pass.
        train_small.set_rates(self.scheduler, given[0]["scheduled"])
        total = sum(len(batch) for batch in batches)
        buffers = list(self.model.buffers())
        before = [buffer.clone() for buffer in buffers]
        means = [torch.zeros(buffer.shape) for buffer in buffers]
        self.optimizer.zero_grad()
        for batch in batches:
            # Each batch is normalized by its own statistics, as if no other had been.
            for buffer, value in zip(buffers, before):
                buffer.copy_(value)
            indices = torch.tensor(batch)
            share = len(batch) / total
            (train_models.loss_of(self.model, self.x[indices], self.y[indices]) * share).backward()
            for mean, buffer in zip(means, buffers):
                mean += buffer * share
        for mean, buffer in zip(means, buffers):
            buffer.copy_(mean)
        self.optimizer.step()

    def set_values(self, values: torch.Tensor) -> None:
        tensors = list(self.model.state_dict().values())
        for tensor, part in zip(tensors, values.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view(tensor.shape))


class Measure:
    """Compares two models' values. The bias of attention's keys counts for nothing: softmax takes no notice of it, its
    gradient is 0 but for rounding, which Adam divides by its own size."""

    def __init__(self, model: torch.nn.Module) -> None:
        state = model.state_dict()
        trained = {name for name, _ in model.named_parameters()}
        self.sizes = [tensor.numel() for tensor in state.values()]
        counts, is_trained = [], []
        for name, tensor in state.items():
            weight = torch.ones(tensor.numel(), dtype=torch.float64)
            if name.endswith("qkv.bias"):
                weight.view(3, -1)[1] = 0
            counts.append(weight)
            is_trained.append(weight if name in trained else torch.zeros_like(weight))
        self.counts, self.is_trained = torch.cat(counts), torch.cat(is_trained)

    def of_tensor(self, a: torch.Tensor, b: torch.Tensor) -> float:
        """The largest difference of a tensor, by its norm."""
        norms = [torch.stack([part.norm() for part in (values.double() * self.counts).split(self.sizes)])
                 for values in (a.double() - b, b)]
        return float((norms[0] / norms[1].clamp(min=1e-6)).max())

    def of_movement(self, a: torch.Tensor, b: torch.Tensor, before: torch.Tensor) -> float:
        """The difference of all parameters, by how far they have moved."""
        return float(((a.double() - b) * self.is_trained).norm() / ((b.double() - before) * self.is_trained).norm())


class Equality(unittest.TestCase):
    def check(self, model: str, workers: int, optimizers: tuple[str, ...]) -> None:
        """Workers go from job to job, for the time that it takes to start them; with large models they do not, for the
        files that they leave."""
        together = [[name] for name in optimizers] if FULL else [list(optimizers)]
        for names in together:
            with contextlib.ExitStack() as stack:
                servers = [stack.enter_context(Server(BINARIES, "--workers-min", str(workers))) for _ in names]
                runs = [self.run_of(model, name, workers, server) for name, server in zip(names, servers)]
                scripts = [Script(servers[0], f"w{i}", "--runs", json.dumps(runs), "--size", SIZE_NAME, "--job", JOB,
                                  "--worker", WORKER, script="train_models.py") for i in range(workers)]
                for run in runs:
                    with self.subTest(**{key: run[key] for key in ("model", "optimizer", "workers")}):
                        self.compare(run, self.steps_of(run, scripts))

    def run_of(self, model: str, optimizer: str, workers: int, server: Server) -> dict:
        (server.root / "states").mkdir()
        # A split and a half more than all have alike: the last steps are of fewer workers, and of unequal batches.
        batches = STEPS * workers + train_models.SPLIT_BATCHES * 3 // 2
        return {"model": model, "optimizer": optimizer, "workers": workers, "samples": batches * SIZE.batch - 1,
                "server": server.address, "to": str(server.root / "states")}

    def steps_of(self, run: dict, scripts: list[Script]) -> dict[int, list[dict]]:
        """Waits for the job. By step: what each worker that took part gave, in the order of the sum."""
        paths = [pathlib.Path(run["to"]) / f"{script.name}.steps" for script in scripts]

        def trained() -> bool:
            for script in scripts:
                self.assertIn(script.process.poll(), (None, 0), script.log())
            return all(path.exists() for path in paths)

        wait_for(f"{run['model']} with {run['optimizer']}", trained, seconds=3600 if FULL else 600)
        steps: dict[int, list[dict]] = {}
        for path in paths:
            for step, given in json.loads(path.read_text()):
                steps.setdefault(step, []).append(given)
        self.assertGreaterEqual(len(steps), STEPS)
        self.assertEqual(max(len(batches) for batches in steps.values()), run["workers"])
        return {step: sorted(given, key=lambda one: one["order"]) for step, given in sorted(steps.items())}

    def compare(self, run: dict, steps: dict[int, list[dict]]) -> None:
        """Each step with PyTorch's from the same parameters; and, where rounding does not grow, where all of them lead
        to. A ResNet's does: a value that passes 0 in one of two runs changes which way a ReLU lets gradients through,
        and BatchNorm hands that on. PyTorch in float32 and in float64 part as far."""
        beside, alone = Plain(run), Plain(run) if run["model"] == "gpt" else None
        measure = Measure(beside.model)
        before = self.values(run, f"before{min(steps)}")
        worst_of_tensor = worst_of_movement = 0.0
        for number, step in enumerate(steps):
            after = self.values(run, f"before{step + 1}" if number + 1 < len(steps) else "last")
            beside.set_values(before)
            beside.step(steps[step])
            plain = train_models.values_of(beside.model)
            worst_of_tensor = max(worst_of_tensor, measure.of_tensor(after, plain))
            worst_of_movement = max(worst_of_movement, measure.of_movement(after, plain, before))
            if alone is not None:
                alone.step(steps[step])
            before = after
        end = None if alone is None else measure.of_tensor(before, train_models.values_of(alone.model))
        print(f"{run['model']}, {run['optimizer']}, {run['workers']} workers, {len(steps)} steps: a step differs by "
              f"{worst_of_tensor:.1e} of a tensor, {worst_of_movement:.1e} of the movement"
              + ("" if end is None else f"; the end by {end:.1e} of a tensor"), flush=True)
        self.assertLess(worst_of_tensor, TENSOR_MAX)
        self.assertLess(worst_of_movement, MOVEMENT_MAX)
        if end is not None:
            self.assertLess(end, TENSOR_MAX)

    def values(self, run: dict, name: str) -> torch.Tensor:
        """What a worker has left; the file is removed."""
        path = pathlib.Path(run["to"]) / name
        values = torch.from_numpy(np.fromfile(path, np.float32))
        path.unlink()
        return values

    def test_one_worker_trains_a_resnet_as_pytorch_alone(self) -> None:
        self.check("resnet", 1, OPTIMIZERS if FULL else ("sgd", "nesterov", "adam"))

    def test_one_worker_trains_a_gpt_as_pytorch_alone(self) -> None:
        self.check("gpt", 1, OPTIMIZERS if FULL else ("sgd", "adam", "adamw"))

    def test_three_workers_train_a_resnet_as_pytorch_on_the_union_of_their_batches(self) -> None:
        self.check("resnet", 3, OPTIMIZERS if FULL else ("adamw",))

    def test_three_workers_train_a_gpt_as_pytorch_on_the_union_of_their_batches(self) -> None:
        self.check("gpt", 3, OPTIMIZERS if FULL else ("nesterov",))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
