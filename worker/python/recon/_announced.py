"""How many bytes others may announce before this process makes room for them.

Members of a set say how large their objects and arrays are, and the receiver makes room before anything of them has come. So what
a member says is looked at first: a wrong number ends the call with an error that names the member, not with the memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from recon import _core

_VARIABLE = "RECON_RECEIVE_BYTES_MAX"


def bytes_max() -> int:
    """Of one call, from all members together: RECON_RECEIVE_BYTES_MAX, or what this process may use of memory."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return _core.memory_limit()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{_VARIABLE} is '{text}', expected a number of bytes")
    return int(text)


def check(counts: Sequence[int], width: int, who: Sequence[str]) -> None:
    """``counts`` by member, of parts of ``width`` bytes. `recon.Refused`, which names the member that announces most, where they
    are more than this process takes, and for a count that can be none."""
    most = bytes_max()
    for count, name in zip(counts, who):
        if count < 0:
            raise _core.Refused(f"{name} announces {count} parts of {width} bytes, which cannot be")
    if sum(counts) * width <= most:
        return
    largest = max(range(len(counts)), key=lambda place: counts[place])
    together = f", all members {sum(counts) * width:,} together" if len(counts) > 1 else ""
    raise _core.Refused(f"{who[largest]} announces {counts[largest] * width:,} bytes{together}: this process takes {most:,} at most "
                        f"in one call ({_VARIABLE})")


def ranks(numbers: Sequence[int]) -> list[str]:
    """Their names for `check`."""
    return [f"rank {number}" for number in numbers]
