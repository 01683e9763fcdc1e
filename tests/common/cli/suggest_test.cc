#include "common/cli/suggest.h"
#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("the distance of two words counts letters put in, left out, replaced and swapped", "[cli]") {
  CHECK(EditDistance("", "") == 0);
  CHECK(EditDistance("batch", "batch") == 0);
  CHECK(EditDistance("", "batch") == 5);
  CHECK(EditDistance("batch", "") == 5);
  CHECK(EditDistance("learnin-rate", "learning-rate") == 1);
  CHECK(EditDistance("bacth", "batch") == 1);
  CHECK(EditDistance("statsu", "status") == 1);
  CHECK(EditDistance("bxtch", "batch") == 1);
  CHECK(EditDistance("kitten", "sitting") == 3);
  // A word of any length takes bounded time.
  CHECK(EditDistance(std::string(1 << 20, 'a'), std::string(1 << 20, 'b')) == 64);
}

TEST_CASE("the nearest name is suggested, and none where none is near", "[cli]") {
  const std::vector<std::string> flags = {"--learning-rate", "--batch", "--beta1",
                                          "--beta2",         "--sync",  "--sync-period"};
  CHECK(Nearest("--learnin-rate", flags) == "--learning-rate");
  CHECK(Nearest("--learning_rate", flags) == "--learning-rate");
  CHECK(Nearest("-batch", flags) == "--batch");
  CHECK(Nearest("bacth", flags) == "--batch");
  CHECK(Nearest("--beta", flags) == "--beta1");
  CHECK(Nearest("--snyc", flags) == "--sync");
  CHECK(Nearest("--tls-cert", flags).empty());
  CHECK(Nearest("--x", flags).empty());
  CHECK(Nearest("", flags).empty());
  CHECK(Nearest("--", flags).empty());
  CHECK(Nearest("status", {}).empty());
}

TEST_CASE("a word that begins one name only stands for it", "[cli]") {
  const std::vector<std::string> names = {"--learning-rate", "--lease-duration", "--lease-target"};
  CHECK(Nearest("--learn", names) == "--learning-rate");
  CHECK(Nearest("--lease", names).empty());
  CHECK(DidYouMean("--learn", names) == ": did you mean --learning-rate?");
  CHECK(DidYouMean("--lease", names).empty());
}

}  // namespace recon
