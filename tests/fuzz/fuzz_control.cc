#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/log.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/server/control/control_program.h"

// The bytes are what clients of a job do, one choice after the other.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  recon::InitLog("off");
  google::protobuf::SetLogHandler(nullptr);  // It says of each message that it is not UTF-8.
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string violated = recon::ControlProgram(data, size).Run();
  if (violated.empty()) return 0;
  std::fprintf(stderr, "%s\n", violated.c_str());
  std::abort();
}
