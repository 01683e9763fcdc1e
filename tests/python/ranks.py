"""Ranks of a job as forks of the test: what the test has imported is there at once, so that tests with many processes
that need PyTorch are short. The test itself must not have joined anything, nor computed with several threads."""

from __future__ import annotations

import os
import pathlib
import runpy
import signal
import sys
import traceback

from jobs import HERE, Server, wait_for

EXAMPLES = HERE.parents[1] / "worker/python/examples"


class Rank:
    """A process that runs a script. Its output is in a file."""

    def __init__(self, server: Server, name: str, script: pathlib.Path, *arguments: str, **environment: str) -> None:
        server.scripts.append(self)
        self.name = name
        self.log_path = server.root / f"{name}.log"
        self.code: int | None = None
        self.log_path.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(script, arguments, {"RECON_SERVER": server.address, "RECON_NAME": name, **environment})

    def _run(self, script: pathlib.Path, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        code = 1
        try:
            log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(environment)
            if "torch" in sys.modules:  # It has read its environment already.
                sys.modules["torch"].set_num_threads(1)
            sys.argv = [str(script), *arguments]
            sys.path.insert(0, str(script.parent))
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if not isinstance(ended.code, int) and ended.code:
                print(ended.code, file=sys.stderr)
        except BaseException:  # noqa: BLE001: told by the exit code, and in the log.
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # What the test cleans up at its end is not this process'.

    def log(self) -> str:
        return self.log_path.read_text()

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self) -> int:
        wait_for(f"{self.name} to end", self.ended)
        assert self.code is not None
        return self.code

    def wait_for_text(self, text: str, after: int = 0) -> None:
        """Until its output has it, behind so many characters."""
        def there() -> bool:
            if text in self.log()[after:]:
                return True
            if self.ended():
                raise AssertionError(f"{self.name} ended with {self.code} before it said '{text}': {self.log()}")
            return False
        wait_for(f"{self.name} to say '{text}'", there)

    def kill(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def all_end_well(ranks: list[Rank]) -> None:
    """AssertionError with the output of the first one that does not."""
    for rank in ranks:
        if rank.wait() != 0:
            raise AssertionError(f"{rank.name} ended with {rank.code}: {rank.log()}")


def accuracy_of(rank: Rank) -> float:
    """What the last line of its output says."""
    name, value = rank.log().splitlines()[-1].split()
    if name != "accuracy":
        raise AssertionError(f"{rank.name} does not end with an accuracy: {rank.log()}")
    return float(value)
