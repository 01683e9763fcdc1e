"""What loops over a job's loader may do besides going through it once a pass, beside the same script in plain PyTorch.
Environment: RECON_TEST_BIN, the programs."""

import copy
import itertools
import queue
import threading
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon
import recon.torch as rt
from torch_small import BATCH, DATA, OPTIMIZER_ON, SAMPLES, Case, accuracy, loss_of, make_model, sgd
from torch import nn

EXACT = {"codec": "fp32", "pull_codec": "fp32"}
BATCHES = SAMPLES // BATCH


def cycle(loader: Any) -> Iterator[Any]:
    while True:
        for batch in loader:
            yield batch


class LoopCase(Case):
    def begin(self, *middle: nn.Module, epochs: int = 2, loader: Any = None, **settings: Any) -> Any:
        """A model in a job, and its twin in plain PyTorch, which steps on the same batches."""
        self.model, self.plain = make_model(*copy.deepcopy(middle)), make_model(*copy.deepcopy(middle))
        self.optimizer, self.its_own = sgd(self.model), sgd(self.plain)
        self.batches = 0
        loader, self.job = self.join(self.model, self.optimizer, loader, epochs=epochs, **EXACT, **settings)
        return loader

    def train_both(self, batch: Any, step: bool = True) -> None:
        # A script that reads ahead past a pass' end has a batch then that is not the job's.
        counts = getattr(self.job, "counts", True)
        self.batches += counts
        for model, optimizer in ((self.model, self.optimizer), (self.plain, self.its_own)) if counts else (
                (self.model, self.optimizer),):
            loss_of(model, batch).backward()
            if step:
                optimizer.step()
                optimizer.zero_grad()

    def expect_equal(self, batches: int) -> None:
        self.expect_done()
        self.assertEqual(self.batches, batches)
        for ours, theirs in zip(self.model.parameters(), self.plain.parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def ahead(loader: Any) -> Iterator[Any]:
    """One batch read ahead."""
    batches = iter(loader)
    following = next(batches)
    for batch in batches:
        yield following
        following = batch
    yield following


def in_a_thread(loader: Any) -> Iterator[Any]:
    read: queue.Queue[Any] = queue.Queue(3)

    def work() -> None:
        for batch in loader:
            read.put(batch)
        read.put(None)

    thread = threading.Thread(target=work)
    thread.start()
    while (batch := read.get()) is not None:
        yield batch
    thread.join()




class ReadingAhead(LoopCase):
    def test_a_batch_belongs_to_the_step_after_its_backward(self) -> None:
        for name, read in (("one ahead", ahead), ("in a thread", in_a_thread), ("all ahead", list)):
            for processes in (0, 2) if name == "one ahead" else (0,):
                with self.subTest(read=name, processes=processes):
                    self.setUp()
                    loader = self.begin(loader=rt.DataLoader(DATA, batch_size=BATCH, num_workers=processes),
                                        evaluate=lambda model: {"accuracy": accuracy(model)})
                    for _ in range(2):
                        for batch in read(loader):
                            self.train_both(batch)
                    self.expect_equal(2 * BATCHES)
                    self.assertEqual(len(self.server.status()["evaluations"]), 2)

    def test_groups_that_are_read_before_they_are_accumulated_make_one_step_each(self) -> None:
        loader = self.begin()
        for _ in range(2):
            batches = iter(loader)
            while group := list(itertools.islice(batches, 4)):
                for number, batch in enumerate(group):
                    self.train_both(batch, step=number == len(group) - 1)
        self.expect_equal(2 * BATCHES)


class LoopsThatTrainNothing(LoopCase):
    def test_a_look_takes_nothing_from_the_job(self) -> None:
        for processes in (0, 2):
            with self.subTest(processes=processes):
                self.setUp()
                loader = self.begin(loader=rt.DataLoader(DATA, batch_size=BATCH, num_workers=processes))
                self.assertEqual(len(next(iter(loader))[0]), BATCH)
                passes = []
                for _ in range(2):
                    samples = []
                    for batch in loader:
                        samples += self.job.indices()
                        self.train_both(batch)
                    passes.append(sorted(samples))
                    next(iter(loader), None)
                self.assertEqual(passes, [list(range(SAMPLES))] * 2)
                self.expect_equal(2 * BATCHES)

    def test_single_looks_may_train(self) -> None:
        loader = self.begin()
        with self.assertRaises(recon.JobDone):
            while True:
                self.train_both(next(iter(loader)))
        self.expect_equal(2 * BATCHES)

    def test_a_pass_without_gradients_sees_all_data_and_takes_nothing(self) -> None:
        loader = self.begin()
        expected = sorted(DATA.tensors[0].sum(1).tolist())

        def seen() -> list[float]:
            return sorted(value for x, _ in loader for value in x.sum(1).tolist())

        for _ in range(2):
            for number, batch in enumerate(loader):
                self.train_both(batch)
                if number == 3:  # In the middle of a loop, too.
                    with torch.no_grad():
                        self.assertEqual(seen(), expected)
            with torch.no_grad():
                self.assertEqual(seen(), expected)
            self.model.eval()
            self.assertEqual(seen(), expected)
            self.model.train()
        self.expect_equal(2 * BATCHES)

    def test_a_pass_that_makes_no_step_trains_nothing(self) -> None:
        loader = self.begin()
        for _ in range(2):
            self.assertEqual(sum(len(x) for x, _ in loader), SAMPLES)
            for batch in loader:
                self.train_both(batch)
        self.expect_equal(2 * BATCHES)

    def test_update_bn_goes_through_all_data(self) -> None:
        loader = self.begin(nn.BatchNorm1d(32))
        for _ in range(2):
            for batch in loader:
                self.train_both(batch)
            averaged, plain = torch.optim.swa_utils.AveragedModel(self.model), torch.optim.swa_utils.AveragedModel(self.model)
            torch.optim.swa_utils.update_bn(loader, averaged)
            torch.optim.swa_utils.update_bn(torch.utils.data.DataLoader(DATA, batch_size=BATCH), plain)
            self.assertEqual(int(averaged.module[2].num_batches_tracked), BATCHES)
            torch.testing.assert_close(averaged.module[2].running_mean, plain.module[2].running_mean, rtol=1e-4, atol=1e-4)
        self.expect_done()

    def test_a_model_that_trains_in_eval_mode_is_the_jobs(self) -> None:
        loader = self.begin()
        self.model.eval()
        for _ in range(2):
            for batch in loader:
                self.train_both(batch)
        self.expect_equal(2 * BATCHES)

    def test_reading_ahead_in_eval_mode_is_told_apart_from_an_evaluation(self) -> None:
        loader = self.begin()
        self.model.eval()
        with self.assertRaisesRegex(RuntimeError, r"which is an evaluation's loop: call model.train\(\) first"):
            for batch in ahead(loader):
                self.train_both(batch)

    def test_a_look_at_files_takes_nothing(self) -> None:
        def read(number: int) -> Iterator[Any]:
            for at in range(200 * number, 200 * (number + 1)):
                yield DATA[at]

        loader = self.begin(loader=rt.leased(range(5), read, samples_per_file=200, batch_size=BATCH))
        for _ in range(2):
            next(iter(loader))
            samples: list[float] = []
            for batch in loader:
                samples += batch[0].sum(1).tolist()
                self.train_both(batch)
            with torch.no_grad():
                self.assertEqual(sorted(value for x, _ in loader for value in x.sum(1).tolist()), sorted(samples))
            self.assertEqual(len(samples), SAMPLES)
        self.expect_equal(2 * BATCHES)


class AfterTheEnd(LoopCase):
    def loop_on(self, loader: Any, kind: str) -> None:
        if kind == "cycle":
            for batch in itertools.islice(cycle(loader), 5 * BATCHES):
                self.train_both(batch)
        elif kind == "read ahead":
            batches = cycle(loader)
            following = next(batches)
            for _ in range(5 * BATCHES):
                batch, following = following, next(batches)
                self.train_both(batch)
        elif kind == "while":
            while self.batches < 5 * BATCHES:
                for batch in loader:
                    self.train_both(batch)
        else:
            batches = iter(loader)
            for _ in range(5 * BATCHES):
                try:
                    batch = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    batch = next(batches)
                self.train_both(batch)

    def test_a_loop_that_cycles_over_a_finished_job_is_told_so(self) -> None:
        for kind in ("cycle", "read ahead", "while", "StopIteration"):
            for epochs in (1, 2):
                with self.subTest(kind=kind, epochs=epochs):
                    self.setUp()
                    loader = self.begin(epochs=epochs, evaluate=lambda model: {"accuracy": accuracy(model)})
                    with self.assertRaisesRegex(recon.JobDone, f"the job is done, after {epochs} passes"):
                        self.loop_on(loader, kind)
                    self.expect_equal(epochs * BATCHES)
                    self.assertEqual(len(self.server.status()["evaluations"]), epochs)
        self.assertFalse(issubclass(recon.JobDone, (StopIteration, recon.ReconError)))

    def test_batches_that_are_kept_and_given_again_are_no_steps_of_the_job(self) -> None:
        for epochs, kind in ((1, recon.JobDone), (2, RuntimeError)):
            with self.subTest(epochs=epochs):
                self.setUp()
                loader = self.begin(epochs=epochs)
                with self.assertRaisesRegex(kind, "as itertools.cycle and list"):
                    for batch in itertools.islice(itertools.cycle(loader), 100):
                        self.train_both(batch)
                self.assertEqual(self.batches, BATCHES + 1)

    def test_loader_and_optimizer_are_plain_after_the_end(self) -> None:
        loader = self.begin()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                for batch in loader:
                    self.train_both(batch)
            self.assertFalse([one for one in said if "the job is done" in str(one.message)])
            self.expect_equal(2 * BATCHES)
            for batch in loader:
                self.train_both(batch)
        self.assertEqual(len([one for one in said if "the job is done, after 2 passes" in str(one.message)]), 1)
        self.expect_equal(3 * BATCHES)
        for batch in torch.utils.data.DataLoader(DATA, batch_size=BATCH):
            self.train_both(batch)
        self.expect_equal(4 * BATCHES)

    def test_more_loops_than_passes_train_this_process_alone(self) -> None:
        loader = self.begin()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                for batch in loader:
                    self.train_both(batch)
        self.expect_equal(4 * BATCHES)
        self.assertEqual(int(self.server.status()["samples_completed"]), 2 * SAMPLES)

    def test_a_step_on_what_was_accumulated_before_the_end_is_not_of_the_job(self) -> None:
        loader = self.begin()
        for _ in range(2):
            for number, batch in enumerate(loader):
                loss_of(self.model, batch).backward()
                if number % 3 == 2:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        before = [p.detach().clone() for p in self.model.parameters()]
        # Where workers have the optimizer it is a step as in plain PyTorch, and they are told that it is their own.
        on_server = OPTIMIZER_ON == "server"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.optimizer.step()
        self.assertEqual(len([one for one in said if "the job is done" in str(one.message)]), 0 if on_server else 1)
        for old, new in zip(before, self.model.parameters()):
            self.assertEqual(torch.equal(old, new), on_server)


if __name__ == "__main__":
    unittest.main(verbosity=2)
