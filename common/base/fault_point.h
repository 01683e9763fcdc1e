#pragma once

#include "absl/status/status.h"

namespace recon {

// A named place where a test can make the process die or an operation fail. Compiled to nothing unless
// the build sets RECON_FAULT_POINTS (the dev preset does).
//
// The environment variable RECON_FAULT says what happens: a comma-separated list of NAME=ACTION or
// NAME:N=ACTION (the N-th time only, from 1). ACTION is `kill` (SIGKILL to itself), `enospc` or `eio`.
// Thread-safe.
absl::Status FaultPoint(const char* name);

}  // namespace recon

#if defined(RECON_FAULT_POINTS)
#define RECON_FAULT_POINT(name) RECON_RETURN_IF_ERROR(::recon::FaultPoint(name))
#else
#define RECON_FAULT_POINT(name) \
  do {                          \
  } while (false)
#endif
