"""A job's state in plain PyTorch: recon.torch.state_dict and load_optimizer. Environment: RECON_TEST_BIN, the
programs."""

import os
import unittest
from collections.abc import Iterator
from typing import Any

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon.torch as rt
import train_small
from jobs import Server
from torch import nn
from torch.nn import functional

BINARIES = os.environ["RECON_TEST_BIN"]
os.environ["RECON_BIN"] = BINARIES
EXACT = {"codec": "fp32", "pull_codec": "fp32"}
DATA = train_small.make_data(1000)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch.set_num_threads(1)
        self.server = Server(BINARIES)
        self.addCleanup(self.server.__exit__)
        os.environ["RECON_SERVER"] = self.server.address

    def join(self, model: nn.Module, optimizer: Any, policy: str = "bsp", epochs: int = 2) -> Iterator[Any]:
        loader = rt.DataLoader(DATA, batch_size=50)
        self.job = rt.join(model, optimizer, loader, optimizer_on="server", epochs=epochs, job_settings={"sync": policy},
                           **EXACT)
        self.addCleanup(self.job.leave)
        return iter(loader)

    def export(self, *flags: str) -> str:
        path = str(self.server.root / "model.safetensors")
        self.server.reconctl("snapshot", "export", str(self.server.data / "snapshots"), "--output", path, *flags)
        return path


def step(model: nn.Module, optimizer: Any, batch: Any) -> None:
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    optimizer.zero_grad()


class Mixed(nn.Module):
    """Tied, frozen and bfloat16 parameters, integer buffers and one that stays here."""

    def __init__(self) -> None:
        super().__init__()
        self.body = train_small.make_model("batch")
        self.head, self.frozen = nn.Linear(10, 10, bias=False), nn.Linear(10, 10).requires_grad_(False)
        self.tied = nn.Linear(10, 10, bias=False)
        self.tied.weight = self.head.weight
        self.scale = nn.Parameter(torch.ones(10, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.full((3,), float("-inf")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.tied(self.head(self.body(x)))) * self.scale.float()


class StateDict(Case):
    def test_it_is_the_jobs_state_as_the_model_would_have_it(self) -> None:
        for policy in ("bsp", "asp", "local:4"):
            with self.subTest(policy=policy):
                self.setUp()
                model = Mixed()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                batches = self.join(model, optimizer, policy)
                for _ in range(9):
                    step(model, optimizer, next(batches))
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                state = rt.state_dict(model)
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(tensor, before[name]), name)
                    self.assertNotEqual(tensor.data_ptr(), state[name].data_ptr())
                self.job.pull()
                expected = model.state_dict()
                self.assertEqual(list(state), list(expected))
                for name, tensor in expected.items():
                    self.assertEqual(state[name].dtype, tensor.dtype)
                    self.assertTrue(torch.equal(state[name], tensor), name)
                    self.assertFalse(state[name].requires_grad)
                self.assertIs(state["head.weight"], state["tied.weight"])
                self.assertFalse(torch.equal(state["scale"], torch.ones(10, dtype=torch.bfloat16)))
                Mixed().load_state_dict(state, strict=True)
                for batch in batches:  # The job goes on.
                    step(model, optimizer, batch)

    def test_it_comes_between_batches_only_and_is_the_models_at_the_end(self) -> None:
        model = train_small.make_model("batch")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with self.assertRaisesRegex(RuntimeError, "this Sequential is not a job's"):
            rt.state_dict(model)
        batches = self.join(model, optimizer, epochs=1)
        batch = next(batches)
        with self.assertRaisesRegex(RuntimeError, r"between a batch and its step\(\)"):
            rt.state_dict(model)
        step(model, optimizer, batch)
        rt.state_dict(model)
        for batch in batches:
            step(model, optimizer, batch)
        self.assertEqual(self.server.phase(), "PHASE_FINISHED")
        for name, tensor in rt.state_dict(model).items():
            self.assertTrue(torch.equal(tensor, model.state_dict()[name]), name)

    def test_a_worker_that_left_early_has_none(self) -> None:
        model = train_small.make_model("batch")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step(model, optimizer, next(self.join(model, optimizer)))
        self.job.leave()
        with self.assertRaisesRegex(RuntimeError, "has left before the job was done"):
            rt.state_dict(model)


class Fused(nn.Module):
    """Its state has two halves of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.zeros(20, 32))
        self.register_state_dict_post_hook(self.split)

    @staticmethod
    def split(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        both = state.pop(f"{prefix}both")
        state[f"{prefix}first"], state[f"{prefix}second"] = both[:10], both[10:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.both[:10] + self.both[10:]).T


class Names(Case):
    def test_a_compiled_model_has_the_names_of_the_plain_one(self) -> None:
        for whole in (True, False):  # Or a part of it.
            with self.subTest(whole=whole):
                self.setUp()
                plain = train_small.make_model("batch")
                if not whole:
                    plain[0] = torch.compile(plain[0], backend="eager")
                model = torch.compile(plain, backend="eager") if whole else plain
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                batches = self.join(model, optimizer, epochs=1)
                for batch in batches:
                    step(model, optimizer, batch)
                self.server.drain()
                exported, fresh = load_file(self.export()), train_small.make_model("batch")
                fresh.load_state_dict(exported, strict=True)
                for ours, theirs in zip(fresh.parameters(), model.parameters()):
                    self.assertTrue(torch.equal(ours, theirs))
                other = torch.optim.SGD(model.parameters(), lr=0.05)
                rt.load_optimizer(other, model, str(self.server.data / "snapshots"))

    def test_tensors_that_a_hook_makes_for_the_state_have_the_jobs_values(self) -> None:
        for policy in ("bsp", "asp"):
            with self.subTest(policy=policy):
                self.setUp()
                model = nn.Sequential(Fused())
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                batches = self.join(model, optimizer, policy, epochs=1)
                for _ in range(5):
                    step(model, optimizer, next(batches))
                before = model[0].both.detach().clone()
                state = rt.state_dict(model)
                self.assertTrue(torch.equal(model[0].both, before))
                self.job.pull()
                self.assertEqual(list(state), ["0.first", "0.second"])
                self.assertTrue(torch.equal(torch.cat([state["0.first"], state["0.second"]]), model[0].both))
                self.assertEqual(torch.equal(model[0].both, before), policy == "bsp")
                for batch in batches:
                    step(model, optimizer, batch)


class Optimizers(Case):
    def test_plain_pytorch_goes_on_as_the_server_does(self) -> None:
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw"):
            with self.subTest(optimizer=name):
                self.setUp()
                model = train_small.make_model("batch")
                optimizer = self.make(name, model)
                batches = self.join(model, optimizer)
                for _ in range(13):
                    step(model, optimizer, next(batches))
                rt.state_dict(model)  # Waits for the last push.
                self.server.reconctl("snapshot", "take", "--server", self.server.address)
                batch = next(batches)
                step(model, optimizer, batch)
                expected = rt.state_dict(model)

                exported = load_file(self.export())
                snapshots = str(self.server.data / "snapshots")
                with_state = self.export("--state")
                for source, updates in ((snapshots, None), (with_state, 13)):
                    plain = train_small.make_model("batch")
                    plain.load_state_dict(exported, strict=True)
                    other = self.make(name, plain)
                    rt.load_optimizer(other, plain, source, updates=updates)
                    step(plain, other, batch)
                    for key, tensor in plain.state_dict().items():
                        self.assertLess(float((tensor - expected[key]).abs().max()), 1e-6, key)
                if name == "sgd":
                    continue
                # Without the state it would be another step.
                plain.load_state_dict(exported, strict=True)
                step(plain, self.make(name, plain), batch)
                distance = max(float((tensor - expected[key]).abs().max())
                               for key, tensor in plain.state_dict().items())
                self.assertGreater(distance, 1e-4)

    def make(self, name: str, model: nn.Module) -> torch.optim.Optimizer:
        if name == "momentum":
            return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
        return train_small.make_optimizer(name, model)

    def test_state_that_does_not_fit_is_told_so(self) -> None:
        model = train_small.make_model("batch")
        optimizer = torch.optim.Adam(model.parameters())
        batches = self.join(model, optimizer)
        step(model, optimizer, next(batches))
        rt.state_dict(model)
        self.server.reconctl("snapshot", "take", "--server", self.server.address)
        snapshots, with_state = str(self.server.data / "snapshots"), self.export("--state")
        wider = train_small.make_model("batch")
        wider[3] = nn.Linear(64, 11)
        for kind, text, other, at, source in (
                (ValueError, "is of adam, the optimizer is adamw", torch.optim.AdamW, model, snapshots),
                (ValueError, "is of adam, the optimizer is sgd", torch.optim.SGD, model, snapshots),
                (TypeError, "RMSprop with these settings steps on the worker", torch.optim.RMSprop, model, snapshots),
                (ValueError, "does not say how many updates", torch.optim.Adam, model, with_state),
                (ValueError, r"3.weight.exp_avg in .* has shape \[10, 64\], the model's is \[11, 64\]",
                 torch.optim.Adam, wider, snapshots),
                (ValueError, "has no 0.bias.exp_avg: it is of another", torch.optim.Adam,
                 train_small.make_model("layer"), snapshots),
                (ValueError, "nowhere", torch.optim.Adam, model, "/nowhere/snapshots")):
            with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                rt.load_optimizer(other(at.parameters(), lr=1e-3), at, source)
        with self.assertRaisesRegex(ValueError, "parameter 0 of the optimizer, of shape .64, 32., is not one of"):
            rt.load_optimizer(torch.optim.Adam(train_small.make_model("batch").parameters()), model, snapshots)


if __name__ == "__main__":
    unittest.main(verbosity=2)
