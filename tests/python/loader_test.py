"""The job's DataLoader takes what torch's takes, and has what it has. Environment: RECON_TEST_BIN, the programs."""

import collections
import os
import unittest
from collections.abc import Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon.torch as rt
from recon.torch._fingerprint import fingerprint
from torch_small import BATCH, DATA, SAMPLES, Case, make_model, sgd
from torch import nn

UTILS = torch.utils.data
NUMBERS = UTILS.TensorDataset(torch.arange(101))
TINY = {"job_settings": {"seed": 7}}


class Numbers(Case):
    """Loaders of numbers, which a model of one weight trains on."""

    def passes_of(self, loader: Any, epochs: int = 2, **settings: Any) -> list[list[list[int]]]:
        """Of each pass its batches."""
        model = nn.Linear(1, 1)
        optimizer = sgd(model, 1e-9)
        self.join(model, optimizer, loader, epochs=epochs, **{**TINY, **settings})
        passes: list[list[list[int]]] = []
        for _ in range(epochs):
            passes.append([])
            for (numbers,) in loader:
                passes[-1].append(numbers.tolist())
                model(numbers.float().unsqueeze(1)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        self.expect_done()
        return passes


class Samplers(Numbers):
    def test_drop_last_leaves_out_what_makes_no_whole_batch(self) -> None:
        loader = rt.DataLoader(NUMBERS, batch_size=20, drop_last=True)
        self.assertEqual(len(loader), 5)
        passes = self.passes_of(loader)
        left_out = set()
        for batches in passes:
            self.assertEqual([len(batch) for batch in batches], [20] * 5)
            numbers = [number for batch in batches for number in batch]
            self.assertEqual(len(set(numbers)), 100)
            left_out |= set(range(101)) - set(numbers)
        self.assertEqual(len(left_out), 2)  # Another one in each pass.
        self.assertEqual(int(self.server.status()["samples_completed"]), 200)
        with self.assertRaisesRegex(ValueError, "a pass has 101 samples, a batch 102"):
            rt.DataLoader(NUMBERS, batch_size=102, drop_last=True)

    def test_a_batchnorm_trains_where_the_last_batch_would_be_one_sample(self) -> None:
        data = UTILS.TensorDataset(torch.cat([DATA.tensors[0], torch.zeros(1, 16)]), torch.cat([DATA.tensors[1], torch.zeros(
            1, dtype=torch.long)]))
        model = make_model(nn.BatchNorm1d(32))
        self.train(model, sgd(model), rt.DataLoader(data, batch_size=BATCH, drop_last=True))
        self.expect_done()
        self.assertEqual(int(model[2].num_batches_tracked), 2 * SAMPLES // BATCH)

    def test_a_pass_has_as_many_samples_as_its_sampler(self) -> None:
        subset = range(0, 101, 3)
        for name, sampler, allowed in (
                ("a subset", UTILS.SubsetRandomSampler(subset), set(subset)),
                ("weighted", UTILS.WeightedRandomSampler([1.0] * 50 + [0.0] * 51, 60), set(range(50)))):
            with self.subTest(name):
                self.setUp()
                loader = rt.DataLoader(NUMBERS, batch_size=10, sampler=sampler)
                self.assertEqual(len(loader), -(-len(sampler) // 10))
                passes = self.passes_of(loader)
                for batches in passes:
                    numbers = [number for batch in batches for number in batch]
                    self.assertEqual(len(numbers), len(sampler))
                    self.assertLessEqual(set(numbers), allowed)
                    if name == "a subset":
                        self.assertEqual(set(numbers), allowed)
                self.assertNotEqual(passes[0], passes[1])

    def test_batches_that_a_sampler_makes_are_the_jobs(self) -> None:
        made = [[1], [2, 3, 4], [5, 6], [100]]
        loader = rt.DataLoader(NUMBERS, batch_sampler=made)
        self.assertEqual(len(loader), 4)
        self.assertEqual(self.passes_of(loader), [made] * 2)
        self.setUp()
        of_torch = UTILS.BatchSampler(UTILS.SequentialSampler(NUMBERS), 50, True)
        self.assertEqual(self.passes_of(rt.DataLoader(NUMBERS, batch_sampler=of_torch)),
                         [[list(range(50)), list(range(50, 100))]] * 2)

    def test_a_part_of_a_sampler_of_many_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(TypeError, r"DistributedSampler of 2 replicas.*leave it away.*shuffle=True"):
            rt.DataLoader(NUMBERS, sampler=UTILS.DistributedSampler(NUMBERS, num_replicas=2, rank=0))
        with self.assertRaisesRegex(ValueError, "batch_sampler goes without batch_size"):
            rt.DataLoader(NUMBERS, 5, batch_sampler=[[1]])


class OfTorch(Numbers):
    def test_it_has_what_frameworks_read_of_a_loader(self) -> None:
        options = {"num_workers": 2, "prefetch_factor": 3, "timeout": 30.0, "generator": torch.Generator(), "collate_fn": list,
                   "multiprocessing_context": "fork", "persistent_workers": True, "drop_last": True, "batch_size": 4,
                   "worker_init_fn": print, "pin_memory": False}
        ours, theirs = rt.DataLoader(NUMBERS, **options), UTILS.DataLoader(NUMBERS, shuffle=True, **options)
        files = rt.leased([1], iter, samples_per_file=1, **{name: value for name, value in options.items() if name != "drop_last"})
        for name in options:
            if name != "multiprocessing_context":
                self.assertEqual(getattr(ours, name), getattr(theirs, name), name)
                self.assertEqual(getattr(files, name), False if name == "drop_last" else getattr(theirs, name), name)
        self.assertIs(ours.dataset, NUMBERS)
        self.assertEqual(len(ours.sampler), 100)
        ours.sampler.set_epoch(3)
        self.assertEqual(ours.batch_sampler.batch_size, 4)
        self.assertFalse(hasattr(ours, "no_such_thing"))

    def test_a_share_of_the_batches_is_told_for_progress_bars(self) -> None:
        loader = rt.DataLoader(NUMBERS, batch_size=10)
        self.passes_of(loader)
        self.assertEqual(loader.batches_of_this_worker, len(loader))

    def test_a_change_of_the_data_set_between_passes_reaches_its_processes(self) -> None:
        class Changes(UTILS.Dataset):
            epoch = 0

            def __len__(self) -> int:
                return 101

            def __getitem__(self, index: int) -> tuple[int]:
                return (self.epoch,)

        for processes in (0, 2):
            with self.subTest(processes=processes):
                self.setUp()
                data, model = Changes(), nn.Linear(1, 1)
                optimizer = sgd(model, 1e-9)
                loader, _ = self.join(model, optimizer, rt.DataLoader(data, batch_size=10, num_workers=processes), epochs=3)
                for data.epoch in range(3):
                    for (epochs,) in loader:
                        self.assertEqual(set(epochs.tolist()), {data.epoch})
                        model(epochs.float().unsqueeze(1)).mean().backward()
                        optimizer.step()
                self.expect_done()

    def test_a_reader_that_would_shard_by_process_reads_all_of_its_file(self) -> None:
        def read(number: int) -> Iterator[tuple[int]]:
            info = UTILS.get_worker_info()
            samples = range(10 * number, 10 * number + 10)
            yield from ((at,) for at in (samples if info is None else samples[info.id::info.num_workers]))

        for policy in ("asp", "bsp"):
            with self.subTest(policy=policy):
                self.setUp()
                loader = rt.leased(range(8), read, samples_per_file=10, batch_size=5, num_workers=2)
                for batches in self.passes_of(loader, job_settings={"sync": policy}):
                    self.assertEqual(sorted(number for batch in batches for number in batch), list(range(80)))


class Drawn(Case):
    def numbers_of(self, loader: Any, **settings: Any) -> list[float]:
        """What the process draws at its first batch, when the script has seeded it."""
        torch.manual_seed(3)
        model = make_model()
        loader, job = self.join(model, sgd(model), loader, job_settings={"sync": "asp", "split_samples": BATCH}, **settings)
        batches = iter(loader)
        next(batches)
        self.kept = [*getattr(self, "kept", []), batches]  # It has the batch.
        return torch.rand(4).tolist()

    def test_no_two_workers_draw_the_same_and_the_first_draws_as_the_script_says(self) -> None:
        torch.manual_seed(3)
        make_model()
        next(iter(UTILS.DataLoader(DATA, batch_size=BATCH)))  # It draws a seed for its processes.
        expected = torch.rand(4).tolist()
        first, second = (self.numbers_of(None) for _ in range(2))
        self.assertEqual(first, expected)
        self.assertNotEqual(second, first)
        self.assertEqual(self.numbers_of(rt.DataLoader(DATA, batch_size=BATCH, reseed=False)), expected)

    def test_a_worker_that_comes_back_draws_something_else(self) -> None:
        drawn = [self.numbers_of(rt.DataLoader(DATA, batch_size=BATCH)) for _ in range(3)]
        self.assertEqual(len({tuple(one) for one in drawn}), 3)


class Fingerprints(unittest.TestCase):
    def test_a_table_is_told_by_what_it_has_and_not_by_what_was_drawn(self) -> None:
        class Table:
            """As Hugging Face's, with a transform that cannot be hashed."""

            def __init__(self, rows: list[dict[str, Any]], transform: Any = None) -> None:
                self.rows, self.transform, self._fingerprint = rows, transform, os.urandom(8).hex()
                self.features = {"text": "string"}

            def __len__(self) -> int:
                return len(self.rows)

            def __getitem__(self, index: int) -> dict[str, Any]:
                return self.rows[index] if self.transform is None else self.transform(self.rows[index])

            def with_format(self, _: None) -> Any:
                return Table(self.rows)

        rows = [{"text": f"row {number}", "ids": [number], "image": b"abc"} for number in range(500)]
        drawn = collections.Counter(fingerprint(Table(rows, lambda row: {**row, "noise": torch.rand(1)})) for _ in range(2))
        self.assertEqual(len(drawn), 1)
        self.assertNotIn("", drawn)
        self.assertNotIn(fingerprint(Table(rows[:499])), drawn)
        self.assertNotIn(fingerprint(Table([*rows[:-500], {**rows[0], "text": "other"}, *rows[1:]])), drawn)


if __name__ == "__main__":
    unittest.main(verbosity=2)
