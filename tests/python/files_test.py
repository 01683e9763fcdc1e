"""recon.torch.leased: files that workers read, whoever dies. Environment: RECON_TEST_BIN, the programs."""

import collections
import json
import os
import signal
import sys
import unittest
from collections.abc import Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon
import recon.torch as rt
from jobs import Script, Server, wait_for
from torch import nn
from torch.nn import functional

BINARIES = os.environ["RECON_TEST_BIN"]
FILES, PER_FILE, BATCH, EPOCHS = 24, 60, 16, 3


def samples_of(number: int) -> int:
    """Files are of uneven size, and one is empty."""
    return 0 if number == 5 else PER_FILE - 20 + 2 * number


def samples_in(number: int) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(5)
    centers = 2 * torch.randn(4, 16, generator=generator)
    generator.manual_seed(100 + number)
    labels = torch.randint(0, 4, (samples_of(number),), generator=generator)
    return list(zip(centers[labels] + torch.randn(len(labels), 16, generator=generator), labels.tolist()))


def read(number: int) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    for at, (x, y) in enumerate(samples_in(number)):
        yield x, y, number, at


ALL = {(number, at) for number in range(FILES) for at in range(samples_of(number))}
TESTS = [sample for number in range(100, 104) for sample in samples_in(number)]


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def accuracy(model: nn.Module) -> float:
    x, y = torch.stack([x for x, _ in TESTS]), torch.tensor([y for _, y in TESTS])
    return float((model(x).argmax(1) == y).double().mean())


def loader_of(**options: Any) -> Any:
    return rt.leased(range(FILES), read, **{"samples_per_file": PER_FILE, "batch_size": BATCH, **options})


class Case(unittest.TestCase):
    flags: tuple[str, ...] = ()

    def setUp(self) -> None:
        torch.set_num_threads(1)
        self.server = Server(BINARIES, *self.flags)
        self.addCleanup(self.server.__exit__)
        os.environ["RECON_SERVER"] = self.server.address

    def train(self, loader: Any, epochs: int = EPOCHS, **settings: Any) -> list[list[tuple[int, int]]]:
        """Of each pass, its samples as (file, number) in the order in which they came."""
        self.steps: list[int] = []
        model = make_model()
        optimizer = settings.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.steps.append(step) or 1.0)
        self.job = rt.join(model, optimizer, loader, epochs=epochs, scheduler=scheduler,
                           evaluate=lambda model: {"accuracy": accuracy(model)}, **settings)
        self.addCleanup(self.job.leave)
        passes = []
        for _ in range(epochs):
            passes.append([])
            for x, y, number, at in loader:
                passes[-1] += zip(number.tolist(), at.tolist())
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        return passes

    def expect_done(self, epochs: int = EPOCHS) -> None:
        status = self.server.status()
        self.assertEqual(status["phase"], "PHASE_FINISHED")
        self.assertEqual(int(status["samples_completed"]), epochs * FILES * PER_FILE)
        self.assertEqual(len(status["evaluations"]), epochs)
        self.assertGreater(status["evaluations"][-1]["accuracy"], 0.9)


class Loops(Case):
    def test_each_sample_of_each_file_comes_once_a_pass(self) -> None:
        for policy, processes in (("bsp", 0), ("bsp", 2), ("asp", 0), ("asp", 2), ("ssp:3", 1), ("local:4", 0),
                                  ("local:20", 2)):
            with self.subTest(policy=policy, processes=processes):
                self.setUp()
                passes = self.train(loader_of(num_workers=processes, shuffle_buffer=10 * processes),
                                    job_settings={"sync": policy})
                for samples in passes:
                    self.assertEqual(len(samples), len(ALL))
                    self.assertEqual(set(samples), ALL)
                self.assertNotEqual(passes[0], passes[1])
                self.expect_done()

    def test_samples_come_as_the_seed_says(self) -> None:
        runs = []
        for seed, options in ((7, {}), (7, {"num_workers": 2}), (8, {}), (7, {"shuffle": False, "shuffle_buffer": 0})):
            self.setUp()
            runs.append(self.train(loader_of(**{"shuffle_buffer": 20, **options}), job_settings={"seed": seed}))
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])
        self.assertEqual(runs[3], [sorted(ALL)] * EPOCHS)
        firsts = [at for _, at in runs[0][0] if at < 20]
        self.assertNotEqual(firsts, sorted(firsts))

    def test_a_scheduler_keeps_to_the_jobs_progress_in_files(self) -> None:
        loader = loader_of()
        self.train(loader, job_settings={"sync": "asp"})
        length = EPOCHS * len(loader)
        self.assertTrue(length - 2 * -(-PER_FILE // BATCH) <= self.steps[-1] <= length, (self.steps[-1], length))

    def test_an_optimizer_of_the_workers_has_rounds_of_files(self) -> None:
        self.train(loader_of(), optimizer=torch.optim.RMSprop)
        self.expect_done()

    def test_a_loop_that_is_left_goes_on_in_the_file(self) -> None:
        loader = loader_of(shuffle=False)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        job = rt.join(model, optimizer, loader)
        self.addCleanup(job.leave)
        seen = []
        for _ in range(3):
            for x, y, number, at in loader:
                seen += zip(number.tolist(), at.tolist())
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if len(seen) % 3 == 0:
                    break
        self.assertEqual(seen, sorted(ALL)[:len(seen)])


class Mistakes(Case):
    def test_arguments_that_make_no_sense_are_told_so(self) -> None:
        for kind, text, change in (
                (ValueError, "there are no files", {"files": []}), (TypeError, "expected a list", {"files": "a.tar"}),
                (TypeError, "read is a int", {"read": 5}), (ValueError, "batch_size is None", {"batch_size": None}),
                (ValueError, "samples_per_file is 0", {"samples_per_file": 0}),
                (ValueError, "shuffle_buffer is -1", {"shuffle_buffer": -1}),
                (TypeError, "leased.. takes no drop_last", {"drop_last": True}),
                (TypeError, "takes no in_order=False", {"in_order": False, "num_workers": 1})):
            with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                rt.leased(**{"files": [1], "read": read, "samples_per_file": 5, **change})

    def test_a_file_that_cannot_be_read_ends_the_loop_with_its_name(self) -> None:
        def broken(number: int) -> Iterator[Any]:
            for sample in read(number):
                if sample[2:] == (9, 40):
                    raise OSError("the file is cut off")
                yield sample

        for processes in (0, 2):
            self.setUp()
            loader = rt.leased(range(FILES), broken, samples_per_file=PER_FILE, batch_size=BATCH, num_workers=processes)
            with self.assertRaisesRegex(OSError, "the file is cut off") as caught:
                self.train(loader)
            if sys.version_info >= (3, 11):
                said = str(caught.exception) + "".join(getattr(caught.exception, "__notes__", []))
                self.assertIn("while 9 was read", said)

    def test_splits_that_would_cut_files_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "split_samples is 100, a file counts as 60 samples"):
            self.train(loader_of(), job_settings={"split_samples": 100})
        self.train(loader_of(), job_settings={"split_samples": 120})
        self.expect_done()

    def test_a_worker_with_other_files_is_refused(self) -> None:
        model = make_model()
        job = rt.join(model, torch.optim.SGD(model.parameters(), lr=0.05), loader_of(), epochs=EPOCHS)
        self.addCleanup(job.leave)
        with self.assertRaisesRegex(recon.Refused, "the worker has 600 training samples, the job has 1440"):
            self.train(rt.leased(range(10), read, samples_per_file=PER_FILE, batch_size=BATCH))


class Kills(Case):
    flags = ("--lease-duration", "2s", "--evict-after", "2s")

    def script(self, name: str, policy: str, trouble: str = "none") -> Script:
        return Script(self.server, name, policy, trouble, str(self.server.root / f"{name}.samples"),
                      script="files_test.py")

    def samples(self, name: str) -> list[tuple[int, int]]:
        """(file, number) of what a worker has trained, in order."""
        path = self.server.root / f"{name}.samples"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [tuple(sample) for line in lines for sample in json.loads(line)]

    def expect_once(self) -> None:
        self.assertEqual(self.completed(), {data_epoch + 1: FILES for data_epoch in range(EPOCHS)})
        splits = [(split["data_epoch"], int(split["begin"]), int(split["end"])) for split in self.trained()]
        self.assertEqual(len(set(splits)), len(splits))
        self.assertEqual({end - begin for _, begin, end in splits}, {PER_FILE})

    def trained(self) -> list[dict]:
        return [split for split in self.server.completions() if split["kind"] == "LEASE_TRAIN"]

    def completed(self) -> collections.Counter[int]:
        """Files of each pass."""
        return collections.Counter(split["data_epoch"] for split in self.trained())

    def test_a_file_whose_worker_dies_is_read_again_from_its_start(self) -> None:
        for policy in ("asp", "bsp"):
            with self.subTest(policy=policy):
                self.setUp()
                first = self.script("first", policy, "waits")
                wait_for("the middle of a file", lambda: "in the middle of" in first.log())
                first.kill()
                for script in [self.script(name, policy) for name in ("b", "c")]:
                    self.assertEqual(script.wait(), 0, script.log())
                self.expect_once()
                self.expect_done()
                trained = {name: self.samples(name) for name in ("first", "b", "c")}
                together = collections.Counter(trained["first"] + trained["b"] + trained["c"])
                self.assertEqual(set(together), ALL)
                again = {sample for sample, times in together.items() if times != EPOCHS}
                self.assertEqual({together[sample] for sample in again}, {EPOCHS + 1})
                # The batch that had been pushed of the file; and asynchronously, of the file before, whose pushes may not
                # have been acknowledged yet. All else comes once a pass.
                last = trained["first"][-1][0]
                self.assertEqual({at for number, at in again if number == last}, set(range(BATCH)))
                before = [number for number, _ in trained["first"] if number != last][-1]
                self.assertLessEqual({number for number, _ in again}, {last, before} if policy == "asp" else {last})

    def test_one_that_was_stopped_for_long_gives_its_file_to_others_and_goes_on(self) -> None:
        self.flags += ("--workers-min", "2")
        for policy in ("asp", "bsp"):
            with self.subTest(policy=policy):
                self.setUp()
                first, second = self.script("first", policy, "stops"), self.script("second", policy)
                wait_for("the middle of a file", lambda: "in the middle of" in first.log())
                # It has a file of the first pass.
                wait_for("the others' completion of it", lambda: self.completed()[1] == FILES)
                first.process.send_signal(signal.SIGCONT)
                for script in (first, second):
                    self.assertEqual(script.wait(), 0, script.log())
                self.expect_once()
                self.expect_done()


def child(policy: str, trouble: str, path: str) -> None:
    """A worker's script that writes down the samples of each step. In the second batch of its fifth file it gets into
    trouble."""
    torch.set_num_threads(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    files = 0

    def read_with_trouble(number: int) -> Iterator[Any]:
        nonlocal files
        files += samples_of(number) > 0
        for sample in read(number):
            if trouble != "none" and files == 5 and sample[3] == BATCH + 5:
                print(f"in the middle of {number}", flush=True)
                signal.pause() if trouble == "waits" else os.kill(os.getpid(), signal.SIGSTOP)
            yield sample

    loader = rt.leased(range(FILES), read_with_trouble, samples_per_file=PER_FILE, batch_size=BATCH)
    rt.join(model, optimizer, loader, epochs=EPOCHS, evaluate=lambda model: {"accuracy": accuracy(model)},
            job_settings={"sync": policy})
    with open(path, "w") as samples:
        for _ in range(EPOCHS):
            for x, y, number, at in loader:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                print(json.dumps(list(zip(number.tolist(), at.tolist()))),
                      file=samples, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("asp", "bsp"):
        child(*sys.argv[1:])
    else:
        unittest.main(verbosity=2)
