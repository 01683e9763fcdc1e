#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/log.h"
#include "tests/server/data_plane/frame_program.h"

// The bytes are what comes over a server's streams, one choice after the other.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  recon::InitLog("off");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string violated = recon::FrameProgram(data, size).Run();
  if (violated.empty()) return 0;
  std::fprintf(stderr, "%s\n", violated.c_str());
  std::abort();
}
