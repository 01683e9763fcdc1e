#include "catch2/catch.hpp"
#include "server/control/policy.h"

namespace recon {

TEST_CASE("a policy reads as the flags that say it", "[policy]") {
  PolicySettings settings;
  CHECK(PolicyFlags(settings) == "--sync asp");
  settings.set_sync("asp");
  settings.set_staleness_correction("none");
  CHECK(PolicyFlags(settings) == "--sync asp");
  settings.set_sync("ssp:4");
  settings.set_local_steps(8);
  settings.set_outer_optimizer("nesterov");
  settings.set_outer_learning_rate(0.7);
  settings.set_outer_momentum(0.9);
  settings.set_staleness_correction("gap-aware:32");
  settings.set_fragments(4);
  settings.set_local_steps_by_speed(true);
  (*settings.mutable_sync_periods())["fc"] = 2;
  (*settings.mutable_sync_periods())["conv"] = 4;
  CHECK(PolicyFlags(settings) ==
        "--sync ssp:4 --local-steps 8 --outer-optimizer nesterov --outer-learning-rate 0.7 --outer-momentum "
        "0.9 "
        "--staleness-correction gap-aware:32 --sync-period conv=4 --sync-period fc=2 --fragments 4 "
        "--local-steps-by-speed");
  PolicySettings automatic;
  automatic.set_sync("auto");
  automatic.set_auto_bound_max(0);
  automatic.set_auto_local_steps_max(16);
  CHECK(PolicyFlags(automatic) == "--sync auto --auto-bound-max 0 --auto-local-steps-max 16");
}

}  // namespace recon
