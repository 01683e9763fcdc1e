#include "common/transport/worker_secret.h"

#include <signal.h>

#include "absl/status/status.h"
#include "catch2/catch.hpp"
#include "common/transport/connected_processes.h"
#include "tests/support/death.h"

namespace recon {

TEST_CASE("an incarnation is the beginning of the SHA-256 of its process' secret", "[secret]") {
  const auto secret = WorkerSecret::FromBytes("a played worker.");
  REQUIRE(secret.ok());
  CHECK(secret->bytes() == "a played worker.");
  CHECK(secret->incarnation() == Incarnation(7375261692889864964u));
  const WorkerSecret drawn = WorkerSecret::Draw();
  CHECK(drawn.bytes().size() == WorkerSecret::kBytes);
  CHECK(drawn.incarnation() != WorkerSecret::Draw().incarnation());
  CHECK(WorkerSecret::FromBytes(drawn.bytes())->incarnation() == drawn.incarnation());
  for (const char* wrong : {"", "too short", "one byte too long"}) {
    CHECK(absl::IsInvalidArgument(WorkerSecret::FromBytes(wrong).status()));
  }
}

TEST_CASE("a process is connected until its last connection has ended", "[secret]") {
  ConnectedProcesses connected;
  const Incarnation one(1);
  connected.Opened(Incarnation());  // Has not said who it is.
  CHECK(!connected.Has(Incarnation()));
  connected.Opened(one);
  connected.Opened(one);
  connected.Closed(one);
  CHECK(connected.Has(one));
  connected.Closed(one);
  CHECK(!connected.Has(one));
  // What was not opened is not closed.
  CHECK(DeathOf([&] { connected.Closed(one); }).signal == SIGABRT);
  connected.Opened(one);
  CHECK(connected.Has(one));
}

}  // namespace recon
