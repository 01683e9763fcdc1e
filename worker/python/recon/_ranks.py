"""Which rank this process is, by whoever has started it; and the set of all for frameworks that have one."""

from __future__ import annotations

import os

from recon.collective import Group
from recon.meeting import Meeting

# Names of the variables for rank and size: recon's, Horovod's, Open MPI's, other MPIs', Slurm's, torchrun's.
_LAUNCHERS = (("RECON_RANK", "RECON_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"),
              ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
              ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("RANK", "WORLD_SIZE"))


def numbers_of_launcher() -> dict[str, int | None]:
    """``rank`` and ``size``, or None twice where nobody says both. Where RECON_MIN_SIZE is set, as `recon run` does,
    other launchers' count for nothing: theirs is the process that has started this one."""
    for rank, size in _LAUNCHERS[:1] if os.environ.get("RECON_MIN_SIZE") else _LAUNCHERS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return {"rank": int(os.environ[rank]), "size": int(os.environ[size])}
    return {"rank": None, "size": None}


def least_size() -> int:
    """RECON_MIN_SIZE, or 1."""
    return int(os.environ.get("RECON_MIN_SIZE", "1"))


class Everybody:
    """The set of all processes of a job, which is joined when it is asked for, and kept."""

    def __init__(self, default_name: str) -> None:
        self._default_name = default_name
        self._meeting: Meeting | None = None
        self._group: Group | None = None

    def join(self, name: str | None = None, timeout: float = 600.0) -> Group:
        """With the launcher's rank and size; else when RECON_MIN_SIZE processes are there, in the order of coming."""
        if self._meeting is None:
            self._meeting = Meeting(name or os.environ.get("RECON_SET", self._default_name), min_size=least_size(),
                                    timeout=timeout, **numbers_of_launcher())
        if self._group is None:
            try:
                self._group = self._meeting.meet()
            except BaseException:
                self.leave()
                raise
        return self._group

    def leave(self) -> None:
        """The next join() begins anew: so a script goes on after a loss."""
        group, meeting, self._group, self._meeting = self._group, self._meeting, None, None
        for one in (group, meeting):
            if one is not None:
                one.close()
