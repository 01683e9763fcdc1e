"""What scripts do around the plain loop. Each is run as a worker of a job and in plain PyTorch: what comes of it is equal, or
it is refused or told by name, at the step where it happens. Environment: RECON_TEST_BIN, the programs;
RECON_TEST_OPTIMIZER_ON=server: the server has the optimizer, and workers where it is not set."""

import sys
import unittest
from collections.abc import Callable

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import idioms_optimizers  # noqa: F401: these have the rows.
import idioms_same  # noqa: F401
import idioms_told  # noqa: F401
import idioms_workers  # noqa: F401
import twin
from idioms import ROWS, Row, make_model, sgd, train
from jobs import wait_for
from torch_small import OPTIMIZER_ON


class Idioms(unittest.TestCase):
    servers: dict[int, twin.Servers]

    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        cls.servers = {workers: twin.Servers(twin.binaries(), "--workers-min", str(workers))
                       for workers in sorted({row.workers for row in ROWS})}
        for servers in cls.servers.values():
            cls.addClassCleanup(servers.close)

    def check(self, row: Row) -> None:
        expected = row.on_server if OPTIMIZER_ON == "server" else row.on_workers
        with self.servers[row.workers].take() as server:
            if expected.error is not None:
                with self.assertRaisesRegex(expected.error, expected.text):
                    twin.run_job(row.script, server)
                return
            job, ours, said = twin.run_job(row.script, server, row.workers)
        self.assertIn(len(said), range(1, row.workers + 1) if expected.warns else [0], said)
        for text in said:
            self.assertRegex(text, expected.text)
        if expected.equal:
            self.assertTrue(all(one is not None for one in ours), "the script returns nothing")
            largest, where = twin.difference(ours, twin.run_plain(row.script, job))
            self.assertLessEqual(largest, row.tolerance, where)


    @unittest.skipUnless(OPTIMIZER_ON == "server", "workers have the optimizer, and its rates")
    def test_rates_that_two_workers_do_not_share_are_told_by_the_server(self) -> None:
        def script(run: twin.Run) -> None:
            model = make_model()
            optimizer = sgd(model)
            train(run, model, optimizer, changes=lambda _: optimizer.param_groups[0].update(lr=0.1 if run.rank == 0 else 0.03))

        with self.servers[2].take() as server:
            twin.run_job(script, server, 2)
            wait_for("a line of the server's", lambda: "named the learning rates" in server.log())
            said = [line for line in server.log().splitlines() if "named the learning rates" in line]
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"workers w[01] and w[01] named the learning rates 0\.(1|03)\d* and 0\.(1|03)\d* for step \d+")


def _test_of(row: Row) -> Callable[[Idioms], None]:
    return lambda self: self.check(row)


for _row in ROWS:
    _name = "test_" + "".join(letter if letter.isalnum() else "_" for letter in _row.name)
    assert not hasattr(Idioms, _name), f"two rows are named {_row.name}"
    setattr(Idioms, _name, _test_of(_row))


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
