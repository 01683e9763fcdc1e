#include "server/sync/step_quorum.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(int ms) { return kStart + absl::Milliseconds(ms); }

}  // namespace

TEST_CASE("without a quorum all are waited for", "[sync]") {
  StepQuorum quorum;
  CHECK_FALSE(quorum.on());
  CHECK(quorum.Note(0, 7, 1, kStart) == absl::InfiniteFuture());
}

TEST_CASE("a step is closed when the quorum is there and its grace has passed", "[sync]") {
  StepQuorum quorum(3, absl::Milliseconds(50));
  CHECK(quorum.Note(0, 0, 4, At(0)) == absl::InfiniteFuture());
  CHECK(quorum.Note(0, 2, 2, At(20)) == absl::InfiniteFuture());
  CHECK(quorum.Note(0, 3, 1, At(100)) == At(150));
  CHECK(quorum.Note(0, 3, 1, At(140)) == At(150));  // From when it was reached.
  CHECK(quorum.Note(0, 4, 0, At(145)) == absl::InfiniteFuture());
  CHECK(quorum.Note(1, 0, 4, At(145)) == absl::InfiniteFuture());
  CHECK(quorum.Note(1, 3, 1, At(200)) == At(250));
  // Of two workers three are no quorum: both are waited for.
  CHECK(quorum.Note(2, 1, 1, At(300)) == absl::InfiniteFuture());
}

TEST_CASE("the grace is half the time of a quorum by itself", "[sync]") {
  StepQuorum quorum(1, std::nullopt);
  CHECK(quorum.grace() == StepQuorum::kGraceMin);
  // The first step begins before the training.
  quorum.Note(0, 0, 2, At(0));
  CHECK(quorum.Note(0, 1, 1, At(60'000)) == At(60'000) + StepQuorum::kGraceMin);
  quorum.Note(1, 0, 2, At(60'000));
  CHECK(quorum.Note(1, 1, 1, At(60'400)) == At(60'600));
  // A step that its last push has closed counts, too: an eighth of the way from 400 to 80 ms.
  quorum.Note(2, 0, 2, At(61'000));
  quorum.Note(3, 0, 2, At(61'080));
  CHECK(quorum.grace() == absl::Milliseconds(180));
  // A pause counts for three times the usual.
  quorum.Note(4, 0, 2, At(61'080 + 100'000));
  CHECK(quorum.grace() == absl::Milliseconds(225));
}

}  // namespace recon
