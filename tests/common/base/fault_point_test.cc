#include "common/base/fault_point.h"

#include <cstdlib>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a fault point fails as the environment says, and only there", "[fault_point]") {
  // Read once a process, at the first fault point.
  setenv("RECON_FAULT", "second.only:2=eio,always.full=enospc", 1);
  CHECK(FaultPoint("second.only").ok());
  CHECK(absl::IsDataLoss(FaultPoint("second.only")));
  CHECK(FaultPoint("second.only").ok());
  CHECK(absl::IsResourceExhausted(FaultPoint("always.full")));
  CHECK(absl::IsResourceExhausted(FaultPoint("always.full")));
  CHECK(FaultPoint("never.named").ok());
}

}  // namespace recon
