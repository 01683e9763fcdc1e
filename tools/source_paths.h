#pragma once

#include <cstdlib>
#include <string>

#include "common/base/process.h"

namespace recon {

// The path of a file of the source tree, given relative to its root. A program in build/PRESET/bin finds the
// tree above itself; RECON_SOURCE_DIR names it for one that lies elsewhere.
inline std::string InSources(const std::string& relative) {
  const char* root = std::getenv("RECON_SOURCE_DIR");
  return (root == nullptr ? ProgramDirectory() + "/../../.." : std::string(root)) + "/" + relative;
}

}  // namespace recon
