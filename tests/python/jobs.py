"""A recon-server, and scripts as its workers, for tests."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
WAIT_SECONDS = 180.0  # A test that waits so long has failed; a busy machine is slow.


def wait_for(what: str, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Returns when the condition holds; AssertionError after so long."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)


class Server:
    """recon-server on a free port of loopback, with a data directory of its own."""

    def __init__(self, binaries: str, *flags: str) -> None:
        self.binaries = pathlib.Path(binaries)
        self.directory = tempfile.TemporaryDirectory(prefix="recon-python-")
        self.root = pathlib.Path(self.directory.name)
        self.data = self.root / "data"
        self.flags = list(flags)
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None
        self.scripts: list[Script] = []
        self.start()

    def start(self) -> None:
        """Starts it, or again after kill(), at the same address."""
        address = self.data / "ADDRESS"
        address.unlink(missing_ok=True)
        with open(self.root / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "recon-server", "--listen", self.address, "--data", self.data, *self.flags],
                stdout=log, stderr=log)
        wait_for("the server's address", lambda: self._listens(address))
        self.address = address.read_text().strip()

    def _listens(self, address: pathlib.Path) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.log()}")
        return address.exists() and address.read_text().endswith("\n")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return (self.root / "server.log").read_text()

    def reconctl(self, *arguments: str) -> str:
        return subprocess.run([self.binaries / "reconctl", *arguments], check=True, capture_output=True,
                              text=True).stdout

    def phase(self) -> str:
        """Of the job; empty while the server does not answer: it begins anew with the first script's settings."""
        try:
            return self.status()["phase"]
        except subprocess.CalledProcessError:
            return ""

    def status(self) -> dict:
        return json.loads(self.reconctl("status", "--server", self.address, "--json"))

    def completions(self) -> list[dict]:
        return json.loads(self.reconctl("completions", "--server", self.address, "--json"))["completions"]

    def drain(self) -> None:
        """Ends it with a snapshot."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(WAIT_SECONDS) != 0:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.log()}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for script in self.scripts:
            script.kill()
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.directory.cleanup()


class Script:
    """A script of this folder as a worker."""

    def __init__(self, server: Server, name: str, *arguments: str, script: str = "train_small.py",
                 **environment: str) -> None:
        server.scripts.append(self)
        self.log_path = server.root / f"{name}.log"
        self.name = name
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / script, *arguments], stdout=log, stderr=log,
                env={**os.environ, "RECON_SERVER": server.address, "RECON_NAME": name, "OMP_NUM_THREADS": "1",
                     **environment})

    def log(self) -> str:
        return self.log_path.read_text()

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} has not ended in {seconds:.0f} s: {self.log()}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
