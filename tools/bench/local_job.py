"""Runs one training job with real processes for the measurements beside this file."""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# Ended from outside, a measurement still ends what it started.
signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class LocalJob:
    """A server and its workers; everything it starts ends with it.

    `prefix(role, index)` gives the words before a command line, for example to run it in a network namespace;
    role is "server" or "worker".
    """

    def __init__(self, binaries, prefix=None, listen="127.0.0.1:0"):
        self.bin = pathlib.Path(binaries)
        self.prefix = prefix or (lambda role, index: [])
        self.listen = listen
        self.directory = tempfile.TemporaryDirectory(prefix="recon-bench-")
        self.path = pathlib.Path(self.directory.name)
        self.processes = []
        self.address = None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait()
        self.directory.cleanup()

    def spawn(self, role, index, arguments):
        log = open(self.path / f"{role}{index}.log", "ab")
        command = [*self.prefix(role, index), *[str(a) for a in arguments]]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.processes[-1]

    def start_server(self, *flags):
        self.server = self.spawn("server", 0, [self.bin / "recon-server", "--data", self.path / "data", "--listen",
                                               self.listen, *flags])
        address_file = self.path / "data" / "ADDRESS"
        self.wait(lambda: address_file.exists() and address_file.read_text().strip(), 30)
        self.address = address_file.read_text().strip()

    def start_worker(self, index, *flags):
        return self.spawn("worker", index, [self.bin / "recon-worker", "--server", self.address, "--name",
                                            f"w{index}", *flags])

    def status(self):
        done = subprocess.run([*self.prefix("server", 0), self.bin / "reconctl", "status", "--server", self.address,
                               "--json", "--insecure"], capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, condition, seconds):
        """The first true value of `condition`; ends the program if a process fails or the time is up."""
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            failed = [p for p in self.processes if p.poll() not in (None, 0)]
            if failed or time.monotonic() > deadline:
                self.print_logs()
                why = f"a process ended with {failed[0].returncode}" if failed else f"waited {seconds} s"
                raise SystemExit(f"bench: {why}")
            time.sleep(0.05)

    def print_logs(self):
        for log in sorted(self.path.glob("*.log")):
            print("---", log.name, "\n" + "".join(open(log, errors="replace").readlines()[-10:]))

    def finish(self, seconds):
        """Waits for the end of the job; its last evaluation."""
        last = None

        def finished():
            nonlocal last
            status = self.status()
            last = status or last
            return last is not None and last["phase"] == "PHASE_FINISHED"
        self.wait(finished, seconds)
        return last
