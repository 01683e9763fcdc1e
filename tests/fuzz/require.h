#pragma once

#include <cstdio>
#include <cstdlib>

namespace recon {

// Ends a fuzzer's process, with what does not hold: that is its finding.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace recon
