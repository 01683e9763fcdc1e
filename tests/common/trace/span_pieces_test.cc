#include "common/trace/span_pieces.h"

#include <functional>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"

namespace recon::trace {
namespace {

TraceDelivery PieceOfTwo() {
  SpanPieces pieces;
  pieces.Add({11, "lane-0"}, {"apply", 5000, 7000, About::Frame(2, 9, 4), false});
  pieces.Add({12, "log"}, {"log", 4000, 4500, {}, true});
  return pieces.Take();
}

}  // namespace

TEST_CASE("spans come out of a piece as they went in", "[trace]") {
  SpanPieces pieces;
  pieces.Add({11, "lane-0"}, {"apply", 5000, 7000, About::Frame(2, 9, 4), false});
  pieces.Add({12, "log"}, {"log", 4000, 4500, {}, true});
  pieces.Add({11, "lane-0"}, {"apply", 7001, 7001, About::Push(0, 0), false});
  const TraceDelivery piece = pieces.Take();
  REQUIRE(CheckPiece(piece).ok());
  CHECK(piece.spans().names_size() == 2);
  REQUIRE(piece.threads_size() == 2);
  CHECK(piece.threads(1).id() == 12);
  CHECK(piece.threads(1).name() == "log");
  std::vector<DeliveredSpan> spans;
  ForEachSpan(piece, [&](const DeliveredSpan& span) { spans.push_back(span); });
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].name == "apply");
  CHECK(spans[0].begin_ns == 5000);
  CHECK(spans[0].end_ns == 7000);
  CHECK(spans[0].about.worker == 3);
  CHECK(spans[0].about.step == 9);
  CHECK(spans[0].about.shard == 5);
  CHECK(spans[1].name == "log");
  CHECK(spans[1].thread == 12);
  CHECK(spans[1].begin_ns == 4000);
  CHECK(spans[1].passive);
  CHECK(spans[2].begin_ns == 7001);
  CHECK(spans[2].end_ns == 7001);
  CHECK(spans[2].about.worker == 1);
  // The next piece needs nothing of this one.
  pieces.Add({12, "log"}, {"log", 100, 200, {}, true});
  const TraceDelivery next = pieces.Take();
  REQUIRE(CheckPiece(next).ok());
  CHECK(next.threads_size() == 1);
  ForEachSpan(next, [](const DeliveredSpan& span) { CHECK(span.begin_ns == 100); });
}

TEST_CASE("a recording is drained in pieces that are small enough", "[trace]") {
  const auto recording = Recording::Begin(MonotonicNanos() + 3'600'000'000'000);
  REQUIRE(recording != nullptr);
  for (int thread = 0; thread < 3; ++thread) {
    std::thread([] {
      for (size_t i = 0; i < limits::kTraceThreadSpansMax; ++i) const Span span("work");
    }).join();
  }
  const std::vector<TraceDelivery> pieces = DrainPieces(recording.get(), /*last=*/true);
  int spans = 0;
  for (const TraceDelivery& piece : pieces) {
    CHECK(CheckPiece(piece).ok());
    CHECK(piece.last() == (&piece == &pieces.back()));
    spans += piece.spans().name_size();
  }
  CHECK(spans == 3 * static_cast<int>(limits::kTraceThreadSpansMax));
  CHECK(DrainPieces(nullptr, /*last=*/true).at(0).shares_process());
}

TEST_CASE("a piece whose parts do not fit together is refused", "[trace]") {
  REQUIRE(CheckPiece(PieceOfTwo()).ok());
  const std::vector<std::function<void(TraceDelivery*)>> damages = {
      [](TraceDelivery* piece) { piece->mutable_spans()->add_name(0); },
      [](TraceDelivery* piece) { piece->mutable_spans()->add_thread(0); },
      [](TraceDelivery* piece) { piece->mutable_spans()->add_begin_ns(0); },
      [](TraceDelivery* piece) { piece->mutable_spans()->clear_length_ns(); },
      [](TraceDelivery* piece) { piece->mutable_spans()->clear_worker(); },
      [](TraceDelivery* piece) { piece->mutable_spans()->clear_step(); },
      [](TraceDelivery* piece) { piece->mutable_spans()->clear_shard(); },
      [](TraceDelivery* piece) { piece->mutable_spans()->clear_passive(); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_name(1, 2); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_begin_ns(1, -5001); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_begin_ns(0, INT64_MAX); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_begin_ns(0, INT64_MIN); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_length_ns(0, UINT64_MAX); },
      [](TraceDelivery* piece) { piece->mutable_spans()->set_names(0, std::string(1000, 'x')); },
      [](TraceDelivery* piece) { piece->mutable_threads(0)->set_name(std::string(1000, 'x')); },
      [](TraceDelivery* piece) { piece->mutable_member()->set_name(std::string(1000, 'x')); },
      [](TraceDelivery* piece) { piece->mutable_member()->set_host(std::string(1000, 'x')); },
      [](TraceDelivery* piece) { piece->add_clock()->set_sent_ns(-1); },
      [](TraceDelivery* piece) { piece->add_clock()->set_answered_ns(INT64_MAX); },
      [](TraceDelivery* piece) {
        for (int i = 0; i <= limits::kTraceNamesMax; ++i) piece->mutable_spans()->add_names("x");
      },
      [](TraceDelivery* piece) {
        for (size_t i = 0; i <= limits::kTraceThreadsMax; ++i) piece->add_threads();
      },
      [](TraceDelivery* piece) {
        for (int i = 0; i <= limits::kTracePieceSpansMax; ++i) {
          TraceSpans* spans = piece->mutable_spans();
          spans->add_name(0);
          spans->add_thread(0);
          spans->add_begin_ns(0);
          spans->add_length_ns(0);
          spans->add_worker(0);
          spans->add_step(0);
          spans->add_shard(0);
          spans->add_passive(false);
        }
      }};
  for (size_t i = 0; i < damages.size(); ++i) {
    INFO("damage " << i);
    TraceDelivery piece = PieceOfTwo();
    damages[i](&piece);
    CHECK(absl::IsInvalidArgument(CheckPiece(piece)));
  }
}

}  // namespace recon::trace
