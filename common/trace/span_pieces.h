#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/trace/recorder.h"
#include "proto/trace.pb.h"

namespace recon::trace {

// Puts spans into pieces as they are delivered. Threads: one.
class SpanPieces {
 public:
  void Add(const Recording::Thread& thread, const Event& event);
  // It is as large as a piece may be.
  bool full() const {
    return piece_.spans().name_size() >= limits::kTracePieceSpansMax ||
           names_.size() >= limits::kTraceNamesMax || threads_.size() >= limits::kTraceThreadsMax;
  }
  // Spans and threads; a new piece begins.
  TraceDelivery Take();

 private:
  TraceDelivery piece_;
  std::map<absl::string_view, uint32_t> names_;
  std::set<uint32_t> threads_;
  int64_t last_begin_ns_ = 0;
};

// What was recorded since the last time, a piece at least; `last`: there will be no more. `recording` may be
// null: another one of this process has it all.
std::vector<TraceDelivery> DrainPieces(Recording* recording, bool last);

// A span as it was delivered.
struct DeliveredSpan {
  absl::string_view name;  // Of the piece.
  uint32_t thread = 0;
  int64_t begin_ns = 0;  // Of its process' clock, as what follows.
  int64_t end_ns = 0;
  About about;
  bool passive = false;
};

// Whether a piece that came over a network is within its bounds, and what is in it fits together:
// InvalidArgument if not.
absl::Status CheckPiece(const TraceDelivery& piece);
// The spans of a piece that is.
void ForEachSpan(const TraceDelivery& piece, const std::function<void(const DeliveredSpan& span)>& take);

}  // namespace recon::trace
