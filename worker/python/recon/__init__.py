"""recon: training that outlives its workers and its server, from Python.

`recon.torch` is the way in for PyTorch. This module is what it stands on and knows no framework: named arrays go
in, gradients go out. All of it raises

* `Refused` - the job does not take this worker as it is: another model, other data, other settings, a value out
  of range. Trying again does not help.
* `JobLost` - the server cannot be reached, and was not for as long as ``reconnect_for`` says.
* `ReconError` - everything else; the two above are of its kind.
* `JobDone` - a loop over a loader that trained in the job asks for more, and the job is done. It is no `ReconError`.
* `FloatingPointError` - a loss or a gradient is infinite or not a number.

Waiting is done without the interpreter's lock, and Ctrl-C ends it.
"""

import recon._load  # noqa: F401: before anything else of ours.
from recon._core import JobLost, ReconError, Refused
from recon._core import version as __version__
from recon._leases import JobDone
from recon._optimizers import Adam, AdamW, SGD
from recon._worker import Worker

__all__ = ["Adam", "AdamW", "JobDone", "JobLost", "ReconError", "Refused", "SGD", "Worker", "__version__"]
