"""Scripts that are killed, interrupted, forked or end early, each in a process of its own. Environment:
RECON_TEST_BIN, the programs."""

import os
import signal
import sys
import unittest

try:
    from torch import nn
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77) from None
import recon
import recon.torch as rt
from jobs import Script, wait_for
from torch_small import BATCH, DATA, Case, accuracy, loss_of, make_model, sgd


class Processes(Case):
    def script(self, mode: str) -> Script:
        return Script(self.server, mode, mode, script="torch_processes_test.py")

    def test_a_fork_of_a_worker_is_told_so_and_ends(self) -> None:
        script = self.script("fork")
        self.assertEqual(script.wait(), 0, script.log())
        self.assertIn("which is the job's worker: use the job there", script.log())
        self.assertIn("which has joined: their connections would be one", script.log())
        self.expect_done()

    def test_ctrl_c_ends_a_loop_and_a_wait(self) -> None:
        for script in [self.script(mode) for mode in ("computes", "waits")]:
            wait_for("the script", lambda: "interrupt me" in script.log())
            script.process.send_signal(signal.SIGINT)
            self.assertNotEqual(script.wait(30), 0)
            self.assertIn("KeyboardInterrupt", script.log())

    def test_an_evaluation_whose_worker_dies_is_done_by_another(self) -> None:
        script = self.script("evaluates")
        wait_for("the evaluation", lambda: "evaluating" in script.log())
        script.kill()
        other = self.script("trains")
        self.assertEqual(other.wait(), 0, other.log())
        self.assertEqual(len(self.server.status()["evaluations"]), 2)

    def test_a_script_that_ends_early_leaves_the_rest_to_others(self) -> None:
        script = self.script("raises")
        self.assertEqual(script.wait(30), 1, script.log())
        self.assertIn("RuntimeError: of the script", script.log())
        other = self.script("trains")
        self.assertEqual(other.wait(), 0, other.log())
        self.expect_done()


def child(mode: str) -> None:
    """A worker's script: `Processes` kills it, or it does not end as it should."""
    model = make_model()
    optimizer = sgd(model)

    def evaluate(model: nn.Module) -> dict[str, float]:
        if mode == "evaluates":
            print("evaluating", flush=True)
            signal.pause()
        return {"accuracy": accuracy(model)}

    if mode == "waits":  # For a server that is not there.
        os.environ["RECON_SERVER"] = "127.0.0.1:1"
        signal.signal(signal.SIGALRM, lambda *_: print("interrupt me", flush=True))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    loader = rt.DataLoader(DATA, batch_size=BATCH)
    rt.join(model, optimizer, loader, epochs=2, evaluate=evaluate)
    if mode == "fork" and os.fork() == 0:
        try:
            next(iter(loader))
        except recon.ReconError as error:
            print(error, flush=True)
        try:
            rt.join(model, sgd(model), rt.DataLoader(DATA))
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(0)
    if mode == "fork":
        os.wait()
    for _ in range(2):
        for number, batch in enumerate(loader):
            loss_of(model, batch).backward()
            if mode == "computes":
                print("interrupt me", flush=True)
                signal.pause()
            if mode == "raises" and number == 7:
                raise RuntimeError("of the script")
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in ("computes", "evaluates", "fork", "raises", "trains", "waits"):
        child(sys.argv[1])
    else:
        unittest.main(verbosity=2)
