#define CATCH_CONFIG_RUNNER
#include <cstdlib>
#include <string>

#include "catch2/catch.hpp"
#include "common/base/log.h"
#include "common/base/process.h"

// Log lines of the code under test would hide the tests' own; RECON_TEST_LOG=info shows them.
int main(int argc, char** argv) {
  recon::TuneEnvironment();
  const char* level = std::getenv("RECON_TEST_LOG");
  recon::InitLog(level == nullptr ? "off" : level);
  return Catch::Session().run(argc, argv);
}
