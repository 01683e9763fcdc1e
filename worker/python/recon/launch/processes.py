"""Processes of a launcher: their starts, their lines and their ends."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import IO, TextIO

# A line that is longer is printed in parts.
LINE_BYTES_MAX = 1 << 16
# Of what a process has written to stderr, so many lines are kept: a traceback's last ones say what happened.
TAIL_LINES = 20
# A progress bar that redraws its line (\r) is shown so often.
REDRAW_SECONDS = 5.0


@dataclasses.dataclass
class Death:
    """How a process ended that should not have."""
    label: str
    pid: int
    code: int  # As subprocess has it: negative for a signal.
    tail: list[str]

    def how(self) -> str:
        if self.code < 0:
            return f"{self.label} (pid {self.pid}) was killed by {signal.Signals(-self.code).name}"
        return f"{self.label} (pid {self.pid}) ended with exit code {self.code}"

    def exit_code(self) -> int:
        return self.code if self.code > 0 else 128 - self.code

    def error(self) -> str:
        """What two deaths of the same cause have in common: Python's last line names the exception."""
        return self.tail[-1] if self.code > 0 and self.tail else ""


class Stream:
    """Cuts what comes out of one pipe into lines."""

    def __init__(self, pipe: IO[bytes], keep: collections.deque[str] | None):
        self.pipe = pipe
        self.keep = keep
        self.rest = b""
        self.redrawn = 0.0
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> tuple[list[bytes], bool] | None:
        """Returns the lines that are complete, and whether this was the end, or None where there is nothing to read.
        At the end the last line is complete."""
        try:
            data = os.read(self.pipe.fileno(), LINE_BYTES_MAX)
        except BlockingIOError:
            return None
        self.rest += data
        lines = self.rest.split(b"\n")
        self.rest = lines.pop()
        shown = [line.rsplit(b"\r", 1)[-1] for line in (line.rstrip(b"\r") for line in lines)]
        now = time.monotonic()
        if b"\r" in self.rest:
            *drawn, self.rest = self.rest.split(b"\r")
            if drawn[-1] and now - self.redrawn > REDRAW_SECONDS:
                self.redrawn = now
                shown.append(drawn[-1])
        if self.rest and (not data or len(self.rest) >= LINE_BYTES_MAX):
            shown.append(self.rest)
            self.rest = b""
        if self.keep is not None:
            self.keep.extend(text for line in shown if (text := line.decode(errors="replace").rstrip()))
        return shown, not data


class Child:
    """A running process. It leads a group of its own, which ends with it; a Ctrl-C reaches the launcher only."""

    def __init__(self, label: str, process: subprocess.Popen[bytes], tail_lines: int):
        self.label = label
        self.process = process
        self.tail: collections.deque[str] = collections.deque(maxlen=tail_lines)
        assert process.stdout and process.stderr
        self.streams = [Stream(process.stdout, None), Stream(process.stderr, self.tail)]

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def death(self) -> Death:
        return Death(self.label, self.pid, self.process.returncode, list(self.tail))


class Processes:
    """Starts processes, prints their lines with their labels, and says who has ended.

    Used by one thread. `signals` collects what the launcher itself was sent (SIGINT, SIGTERM, SIGHUP)."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.signals: list[int] = []
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = os.pipe()
        for end in (self.wake_read, self.wake_write):
            os.set_blocking(end, False)
        self.selector.register(self.wake_read, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.signals.append(number))
        self.guard: subprocess.Popen[bytes] | None = None

    def start(self, label: str, command: list[str], environment: dict[str, str],
              pass_fds: Iterable[int] = (), tail_lines: int = TAIL_LINES) -> Child:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, pass_fds=tuple(pass_fds))
        child = Child(label, process, tail_lines)
        self.children.append(child)
        for stream in child.streams:
            self.selector.register(stream.pipe, selectors.EVENT_READ, (child, stream))
        self.tell_guard(f"+{child.pid}")
        return child

    def tell_guard(self, line: str) -> None:
        if self.guard is None or self.guard.poll() is not None:
            script = pathlib.Path(__file__).resolve().parent / "guard.py"
            self.guard = subprocess.Popen([sys.executable, "-S", "-E", str(script)], stdin=subprocess.PIPE,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            line = "\n".join(f"+{child.pid}" for child in self.children)
        assert self.guard.stdin
        with contextlib.suppress(BrokenPipeError):
            self.guard.stdin.write(f"{line}\n".encode())
            self.guard.stdin.flush()

    def wait(self, seconds: float) -> list[Child]:
        """Prints what comes for so long, or until something has ended or a signal has come. Returns who has ended."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
            else:
                self.take(*key.data)
        ended = [child for child in self.children if child.process.poll() is not None]
        for child in ended:
            self.children.remove(child)
            # Processes that it has started hold its pipes; they are of no use without it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            self.tell_guard(f"-{child.pid}")
            for stream in child.streams:
                while not stream.pipe.closed and self.take(child, stream):
                    pass
                self.forget(stream)
        return ended

    def take(self, child: Child, stream: Stream) -> bool:
        """Prints what is there. Returns whether there may be more."""
        result = stream.read()
        if result is None:
            return False
        lines, end = result
        for line in lines:
            emit(sys.stdout if stream.keep is None else sys.stderr, child.label, line)
        if end:
            self.forget(stream)
        return not end

    def forget(self, stream: Stream) -> None:
        if not stream.pipe.closed:
            self.selector.unregister(stream.pipe)
            stream.pipe.close()


def emit(to: TextIO, label: str, line: bytes) -> None:
    # Whoever read the launcher's output may be gone; training goes on.
    with contextlib.suppress(OSError):
        to.buffer.write(b"[" + label.encode() + b"] " + line + b"\n")
        to.buffer.flush()


def say(text: str) -> None:
    """A line of the launcher's own."""
    emit(sys.stderr, "run", text.encode())
