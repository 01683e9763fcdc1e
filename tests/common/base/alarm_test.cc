#include "common/base/alarm.h"

#include <atomic>

#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "tests/support/process.h"

namespace recon {

TEST_CASE("an alarm rings once, at the time that was set last", "[alarm]") {
  std::atomic<int> rings{0};
  Alarm alarm([&] { ++rings; });
  alarm.Set(Now() + absl::Hours(1));
  const absl::Time at = Now() + absl::Milliseconds(20);
  alarm.Set(at);
  CHECK(Eventually([&] { return rings == 1; }));
  CHECK(Now() >= at);
  alarm.Set(Now() + absl::Hours(1));
  alarm.Set(absl::InfiniteFuture());
  alarm.Set(absl::InfinitePast());  // Has passed: at once.
  CHECK(Eventually([&] { return rings == 2; }));
}

TEST_CASE("an alarm may be set while it rings", "[alarm]") {
  std::atomic<int> rings{0};
  Alarm* self = nullptr;
  Alarm alarm([&] {
    if (++rings < 5) self->Set(Now());
  });
  self = &alarm;
  alarm.Set(Now());
  CHECK(Eventually([&] { return rings == 5; }));
}

}  // namespace recon
