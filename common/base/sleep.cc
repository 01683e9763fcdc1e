#include "common/base/sleep.h"

#include "absl/time/clock.h"

namespace recon {

void Sleep(absl::Duration duration) { absl::SleepFor(duration); }

}  // namespace recon
