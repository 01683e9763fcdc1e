"""Loads the C++ module. TensorFlow makes its protobuf's symbols known to the whole process, where ours, another version,
would find them first: in a process that has TensorFlow already, the module looks at its own libraries before."""

import os
import sys

_flags = sys.getdlopenflags()
if "tensorflow" in sys.modules and hasattr(os, "RTLD_DEEPBIND"):
    sys.setdlopenflags(_flags | os.RTLD_DEEPBIND)
try:
    import recon._core  # noqa: F401
finally:
    sys.setdlopenflags(_flags)
