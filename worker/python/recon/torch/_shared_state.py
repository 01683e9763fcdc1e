"""The state of a job whose workers have the optimizer, as one of them keeps it: uploads it, takes it, and closes splits when it is
saved."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from recon.torch._schedule import StepProgress
from recon.torch._share import Share
from recon.torch._tensors import as_kept
from recon.torch._worker_state import WorkerState

_log = logging.getLogger("recon")

# With so many splits that wait for the state to be saved, this worker asks for it.
_UNCOVERED_MAX = 8
# A thread that reads batches has found nothing so often before what the other one has accumulated is uploaded.
_IDLE_MAX = 100
WAIT_SECONDS = 0.02
_SAY_SECONDS = 10.0


class StateShare(Share):
    """A worker's share of the data, and of the job's state.

    What a newcomer needs comes from a worker that lives, by way of the server. Where none lives, training goes on from the
    state that the server has, and what was computed after it is computed again.
    """

    name: str
    _state: WorkerState
    _progress: StepProgress
    _names: Sequence[str]
    _parameters: Sequence[torch.nn.Parameter]
    _buffers: Sequence[tuple[str, torch.Tensor]]

    def _begin_state(self, placement: Sequence[tuple[str, int, int]]) -> None:
        """`placement`: of the core."""
        self._state.place(placement)
        self._at = {name: (offset, size) for name, offset, size in placement}
        self._has_state = False
        self._next = 0  # The next step that this worker's state is to take.
        self._through = 0  # The first step after those that its batches are for.
        self._stepped = False  # Whether the optimizer has stepped since the last backward.
        self._idle = 0  # How often the loop has looked and found nothing to compute.
        self._owed_splits: collections.deque[tuple[int, int]] = collections.deque()  # Closed when that step is saved.
        self._uploading: threading.Thread | None = None
        self._line = 0  # Of the job's states, that of this worker's.
        self._upload = self._failed_upload = 0  # The numbers of the last upload, and of the last that came to nothing.

    def _step_of_next(self) -> int:
        """The step that the next batch is of that the loader takes."""
        elsewhere = self._leases.handed_out - len(self._handed.batches)  # The loader has them.
        return self._next + len(self._handed) + max(0, elsewhere)

    def _step_ahead(self) -> int:
        """The step that the next batch is of that this worker is given a lease of."""
        return self._step_of_next() + self._leases.ready

    def _reads_ahead(self) -> bool:
        """Whether the script has batches that were in no backward yet."""
        return len(self._handed) > 0

    def _place(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        offset, size = self._at[name]
        return flat[offset:offset + size]

    def _report(self) -> None:
        owed, at = len(self._owed_splits), self._step_ahead()
        last = next((number for number, entry in enumerate(reversed(self._handed.entries)) if not entry.lost), None)
        if at > self._next + len(self._handed):
            self._through = at
        elif last is not None:
            self._through = at - last
        uncovered = owed >= _UNCOVERED_MAX or (self._idle > 0 and owed > 0)
        self._core.report_state(self._next, None, uncovered, self._failed_upload, self._line, at, self._through,
                                self._reads_ahead())

    def _serve_state(self) -> None:
        self._report()
        said = self._core.state()
        while self._owed_splits and said["saved"] > self._owed_splits[0][1]:
            self._core.close_split(self._owed_splits.popleft()[0])
        uploading = self._uploading is not None and self._uploading.is_alive()
        upload, newer = int(said["wanted"]), self._next > int(said["uploaded"])
        if upload in (0, self._upload) or not newer or uploading:
            return
        # What is accumulated waits for its step. Where no more batches come before the state is saved, it goes along. A thread
        # that only reads waits until the other one has nothing to do any more.
        accumulated = {} if self._stepped or self._next == 0 else {
            name: parameter.grad.to_dense().cpu() for name, parameter in zip(self._names, self._parameters)
            if parameter.grad is not None}
        if not accumulated or self._idle > (_IDLE_MAX if self._handed.threaded else 0):
            self._upload = upload
            self._send_state(upload, accumulated)

    def _send_state(self, upload: int, accumulated: dict[str, torch.Tensor]) -> None:
        for name, parameter in zip(self._names, self._parameters):
            if not bool(parameter.isfinite().all()):
                raise FloatingPointError(f"before step {self._next} {name} of {type(self.model).__name__} has values that are infinite "
                                         "or not a number: the job's state stays what was saved before")
        flat = np.zeros(self._core.size, np.float32)
        step, core = self._next, self._core
        beside = {"progress": self._progress.state()}
        try:
            self._state.store(flat, step, {**beside, "gradients": accumulated})
        except OverflowError:
            if not accumulated:
                raise
            _log.warning("the job's state before step %d has no room for gradients that are accumulated and not stepped: a worker "
                         "that comes now begins without them", step)
            self._state.store(flat, step, beside)

        def send() -> None:
            wrong = core.send_state(flat, step, upload)
            if wrong:
                self._failed_upload = upload
                _log.info("the state before step %d did not reach the servers: %s", step, wrong)

        self._uploading = threading.Thread(target=send, name="recon-state", daemon=True)
        self._uploading.start()

    def _initial(self) -> np.ndarray:
        flat = np.zeros(self._core.size, np.float32)
        self._state.store(flat, 0, {"progress": self._progress.state()})
        for name, buffer in self._buffers:
            self._place(torch.from_numpy(flat), name).copy_(buffer.detach().reshape(-1))
        wrong = [name for name in self._names if not np.isfinite(self._place(torch.from_numpy(flat), name).numpy()).all()]
        if wrong:
            raise FloatingPointError(f"the model begins with {wrong[0]}, which has values that are infinite or not a number")
        return flat

    def _ask(self, wanted: int) -> str:
        """Asks for work that this worker cannot do without the state: only what is said of it comes back."""
        self._core.report_state(None, wanted)
        kind, *_ = self._core.next_work()
        if kind == "initial_values":
            self._core.send_initial_values(self._initial())
        elif kind == "finished":
            self._leases.finished = True
        return str(kind)

    def _take_state(self) -> None:
        """Waits until this worker has the job's state: another's, or the server's where nobody lives who has one."""
        wanted: int | None = None
        began = said_at = time.monotonic()
        while True:
            kind, said = self._ask(wanted or 0), self._core.state()
            if wanted is None and said["ready"]:
                wanted = int(said["frontier"])
            newest = wanted is not None and int(said["uploaded"]) >= wanted
            if kind == "finished" or (said["ready"] and (said["take"] or newest)):
                taken = bool(said["take"])
                if taken and self._owed_splits:  # They were in this worker's own state alone.
                    raise RuntimeError("this worker has lost its state, and no other one has it: start it again")
                step = self._load()
                if step is not None and (taken or kind == "finished" or step >= (wanted or 0)):
                    self._next, self._line = int(said["frontier"]) if taken else step, int(said["line"])
                    break
            if time.monotonic() - said_at > _SAY_SECONDS:
                said_at = time.monotonic()
                _log.warning("%s has waited %.0f s for the job's state before step %s: no worker has uploaded it", self.name,
                             said_at - began, wanted)
            time.sleep(WAIT_SECONDS)
        self._has_state = True
        self._report()

    def _load(self) -> int | None:
        """Takes the servers' state; returns the step before which it was uploaded. None while theirs are of two uploads."""
        self._core.pull()
        if not self._core.state_whole():
            return None
        flat = np.array(self._core.parameters(), copy=True)
        with torch.no_grad():
            for name, buffer in self._buffers:
                values = self._place(torch.from_numpy(flat), name).view(buffer.shape)
                buffer.copy_(as_kept(buffer, values))
        self._stepped = True
        step, beside = self._state.load(flat)
        self._progress.load(beside["progress"])
        accumulated = beside.get("gradients", {})
        for name, parameter in zip(self._names, self._parameters) if accumulated else ():
            parameter.grad = accumulated[name].to(parameter.device) if name in accumulated else None
        return step
