"""Ends a launcher's processes when the launcher has died, even by SIGKILL.

Runs as a process of its own and reads its standard input: "+N" is a process group to watch, "-N" one that is no more.
The end of the input is the launcher's end: what is left then gets SIGTERM, so that a server can take a snapshot, and
SIGKILL when that has taken GRACE_SECONDS."""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_SECONDS = 10


def send(groups: set[int], number: int) -> set[int]:
    """Returns the groups that were there to get the signal."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number)
            there.add(group)
        except ProcessLookupError:
            pass
    return there


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    groups = send(groups, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        groups = send(groups, 0)
    send(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
