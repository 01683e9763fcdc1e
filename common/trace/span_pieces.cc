#include "common/trace/span_pieces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace recon::trace {
namespace {

// Nothing that runs now ends so late by any clock, and the sum of two such times is a number still.
constexpr int64_t kTimeMax = int64_t{1} << 61;

bool SameLength(const TraceSpans& spans) {
  const int size = spans.name_size();
  return spans.thread_size() == size && spans.begin_ns_size() == size && spans.length_ns_size() == size &&
         spans.worker_size() == size && spans.step_size() == size && spans.shard_size() == size &&
         spans.passive_size() == size;
}

// Times of a piece neither wrap nor lie before the clock began.
bool TimesFit(const TraceSpans& spans) {
  int64_t begin = 0;
  for (int i = 0; i < spans.name_size(); ++i) {
    if (spans.begin_ns(i) > kTimeMax || spans.begin_ns(i) < -kTimeMax) return false;
    begin += spans.begin_ns(i);
    if (begin < 0 || begin > kTimeMax || spans.length_ns(i) > static_cast<uint64_t>(kTimeMax - begin))
      return false;
  }
  return true;
}

bool IsReading(const ClockSample& sample) {
  return std::min({sample.asked_ns(), sample.received_ns(), sample.sent_ns(), sample.answered_ns()}) >= 0 &&
         std::max({sample.asked_ns(), sample.received_ns(), sample.sent_ns(), sample.answered_ns()}) <=
             kTimeMax;
}

}  // namespace

void SpanPieces::Add(const Recording::Thread& thread, const Event& event) {
  const auto [name, is_new] = names_.try_emplace(event.name, static_cast<uint32_t>(names_.size()));
  TraceSpans* spans = piece_.mutable_spans();
  if (is_new) spans->add_names(event.name);
  if (threads_.insert(thread.id).second) {
    TraceThread* added = piece_.add_threads();
    added->set_id(thread.id);
    added->set_name(thread.name);
  }
  spans->add_name(name->second);
  spans->add_thread(thread.id);
  spans->add_begin_ns(event.begin_ns - last_begin_ns_);
  last_begin_ns_ = event.begin_ns;
  spans->add_length_ns(static_cast<uint64_t>(std::max<int64_t>(0, event.end_ns - event.begin_ns)));
  spans->add_worker(event.about.worker);
  spans->add_step(event.about.step);
  spans->add_shard(event.about.shard);
  spans->add_passive(event.passive);
}

TraceDelivery SpanPieces::Take() {
  RECON_CHECK(SameLength(piece_.spans()));
  RECON_CHECK_EQ(names_.size(), piece_.spans().names_size());
  names_.clear();
  threads_.clear();
  last_begin_ns_ = 0;
  return std::exchange(piece_, TraceDelivery());
}

std::vector<TraceDelivery> DrainPieces(Recording* recording, bool last) {
  // All of it first: rings are free again before anything is sent.
  std::vector<TraceDelivery> pieces;
  SpanPieces filling;
  uint64_t lost = 0;
  if (recording != nullptr) {
    lost = recording->Drain([&](const Recording::Thread& thread, const Event& event) {
      filling.Add(thread, event);
      if (filling.full()) pieces.push_back(filling.Take());
    });
  }
  pieces.push_back(filling.Take());
  pieces.back().set_dropped(lost);
  pieces.back().set_shares_process(recording == nullptr);
  pieces.back().set_last(last);
  return pieces;
}

absl::Status CheckPiece(const TraceDelivery& piece) {
  const TraceSpans& spans = piece.spans();
  if (spans.name_size() > limits::kTracePieceSpansMax || spans.names_size() > limits::kTraceNamesMax ||
      piece.threads_size() > static_cast<int>(limits::kTraceThreadsMax) ||
      piece.clock_size() > limits::kTracePieceSpansMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of a trace with ", spans.name_size(), " spans, ", spans.names_size(), " names, ",
        piece.threads_size(), " threads and ", piece.clock_size(), " readings of clocks; allowed are ",
        limits::kTracePieceSpansMax, ", ", limits::kTraceNamesMax, ", ", limits::kTraceThreadsMax, " and ",
        limits::kTracePieceSpansMax));
  }
  const auto long_text = [](const std::string& text) { return text.size() > limits::kNameBytesMax; };
  const bool long_thread = std::any_of(piece.threads().begin(), piece.threads().end(),
                                       [&](const TraceThread& thread) { return long_text(thread.name()); });
  if (long_thread || std::any_of(spans.names().begin(), spans.names().end(), long_text) ||
      long_text(piece.member().name()) || long_text(piece.member().host())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of a trace with a name of more than ", limits::kNameBytesMax, " bytes"));
  }
  const auto unknown = [&](uint32_t name) { return name >= static_cast<uint32_t>(spans.names_size()); };
  if (!SameLength(spans) || std::any_of(spans.name().begin(), spans.name().end(), unknown) ||
      !TimesFit(spans) || !std::all_of(piece.clock().begin(), piece.clock().end(), IsReading)) {
    return absl::InvalidArgumentError("a piece of a trace whose parts do not fit together");
  }
  return absl::OkStatus();
}

void ForEachSpan(const TraceDelivery& piece, const std::function<void(const DeliveredSpan& span)>& take) {
  const TraceSpans& spans = piece.spans();
  DeliveredSpan span;
  for (int i = 0; i < spans.name_size(); ++i) {
    span.name = spans.names(static_cast<int>(spans.name(i)));
    span.thread = spans.thread(i);
    span.begin_ns += spans.begin_ns(i);
    span.end_ns = span.begin_ns + static_cast<int64_t>(spans.length_ns(i));
    span.about = {spans.worker(i), spans.step(i), spans.shard(i)};
    span.passive = spans.passive(i);
    take(span);
  }
}

}  // namespace recon::trace
