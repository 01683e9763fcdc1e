#pragma once

#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/trace/span_names.h"
#include "common/trace/span_pieces.h"
#include "tools/trace/timeline.h"

namespace recon {

// What a trace's client is sent, made up. Times are milliseconds of the head's clock; members' own clocks are
// what they are ahead of it by, and every question for the head's time takes 0.2 ms.
class TraceUpdates {
 public:
  static constexpr int64_t kMs = 1'000'000;
  struct Span {
    const char* name;
    double begin_ms, end_ms;
    trace::About about = {};
    bool passive = false;
    uint32_t thread = 1;
  };

  TraceUpdates(double begin_ms, double end_ms) : end_ms_(end_ms) {
    TraceUpdate update;
    update.mutable_begun()->set_begin_ns(Ns(begin_ms));
    update.mutable_begun()->set_end_ns(Ns(end_ms));
    Add(std::move(update));
  }

  void AddServer(uint32_t place, const std::vector<Span>& spans, double ahead_ms = 0) {
    AddMember(TRACE_ROLE_SERVER, absl::StrCat("10.0.0.", place, ":7070"), place, spans, ahead_ms);
  }
  void AddWorker(uint32_t number, const std::string& name, const std::vector<Span>& spans,
                 double ahead_ms = 0) {
    AddMember(TRACE_ROLE_WORKER, name, number, spans, ahead_ms);
  }
  void AddGap(const std::string& worker, const std::string& why) {
    TraceGap* gap = outcome_.add_gaps();
    gap->mutable_member()->set_name(worker);
    gap->set_why(why);
  }
  Timeline Build() {
    TraceUpdate update;
    *update.mutable_outcome() = outcome_;
    update.mutable_outcome()->set_end_ns(Ns(end_ms_));
    Add(std::move(update));
    REQUIRE(builder_.ended());
    return builder_.Build();
  }

 private:
  static int64_t Ns(double ms) { return static_cast<int64_t>(ms * kMs); }

  void Add(TraceUpdate update) { REQUIRE(builder_.Add(std::move(update)).ok()); }

  void AddMember(TraceRole role, const std::string& name, uint32_t number, const std::vector<Span>& spans,
                 double ahead_ms) {
    trace::SpanPieces pieces;
    for (const Span& span : spans) {
      pieces.Add(
          {span.thread, absl::StrCat("thread ", span.thread)},
          {span.name, Ns(span.begin_ms + ahead_ms), Ns(span.end_ms + ahead_ms), span.about, span.passive});
    }
    TraceUpdate update;
    TraceDelivery* delivery = update.mutable_delivery();
    *delivery = pieces.Take();
    delivery->mutable_member()->set_role(role);
    delivery->mutable_member()->set_name(name);
    delivery->mutable_member()->set_number(number);
    delivery->mutable_member()->set_process(1000 + number);
    for (const double at_ms : {1000.0, 1500.0}) {
      ClockSample* sample = delivery->add_clock();
      sample->set_asked_ns(Ns(at_ms + ahead_ms));
      sample->set_received_ns(Ns(at_ms + 0.1));
      sample->set_sent_ns(Ns(at_ms + 0.1));
      sample->set_answered_ns(Ns(at_ms + 0.2 + ahead_ms));
    }
    Add(std::move(update));
  }

  const double end_ms_;
  TraceOutcome outcome_;
  TimelineBuilder builder_;
};

}  // namespace recon
