#include "tools/trace/timeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/trace/span_pieces.h"

namespace recon {

int64_t Timeline::clock_error_ns() const {
  int64_t largest = 0;
  for (const Process& process : processes) largest = std::max(largest, process.clock_error_ns);
  return largest;
}

std::string ProcessTitle(const TraceMember& member) {
  if (member.role() == TRACE_ROLE_WORKER) return absl::StrCat("worker ", member.number(), " ", member.name());
  if (member.number() == 0) return absl::StrCat("head ", member.name());
  return absl::StrCat("server ", member.number(), " ", member.name());
}

absl::Status TimelineBuilder::Add(TraceUpdate update) {
  if (update.has_begun()) {
    timeline_.begin_ns = update.begun().begin_ns();
    timeline_.end_ns = update.begun().end_ns();
    begun_ = true;
  } else if (update.has_delivery()) {
    return AddDelivery(update.delivery());
  } else if (update.has_outcome()) {
    timeline_.end_ns = update.outcome().end_ns();
    for (TraceGap& gap : *update.mutable_outcome()->mutable_gaps()) timeline_.gaps.push_back(std::move(gap));
    ended_ = true;
  }
  return absl::OkStatus();
}

absl::Status TimelineBuilder::AddDelivery(const TraceDelivery& delivery) {
  RECON_RETURN_IF_ERROR(trace::CheckPiece(delivery));
  const TraceMember& member = delivery.member();
  // Servers before workers, each in the order of their numbers.
  const int order = member.role() == TRACE_ROLE_SERVER ? 0 : 1;
  Collected& collected = collected_[{order, member.number(), member.name(), member.host(), member.process()}];
  collected.process.member = member;
  collected.process.dropped += delivery.dropped();
  collected.shares_process = collected.shares_process || delivery.shares_process();
  for (const TraceThread& thread : delivery.threads()) collected.process.threads[thread.id()] = thread.name();
  for (const ClockSample& sample : delivery.clock()) {
    collected.clock.push_back(
        {sample.asked_ns(), sample.received_ns(), sample.sent_ns(), sample.answered_ns()});
  }
  trace::ForEachSpan(delivery, [&](const trace::DeliveredSpan& span) {
    Timeline::Span& added = collected.spans.emplace_back();
    added.thread = span.thread;
    added.name = &timeline_.names.try_emplace(std::string(span.name), span.name).first->second;
    added.begin_ns = span.begin_ns;
    added.end_ns = span.end_ns;
    added.about = span.about;
    added.passive = span.passive;
  });
  return absl::OkStatus();
}

void TimelineBuilder::Align(Collected* collected, size_t number) {
  const TraceMember& member = collected->process.member;
  const bool head = member.role() == TRACE_ROLE_SERVER && member.number() == 0;
  const std::optional<trace::ClockMap> clock =
      head ? trace::ClockMap() : trace::AlignClocks(collected->clock);
  if (!clock) {
    if (collected->spans.empty()) return;
    TraceGap& gap = timeline_.gaps.emplace_back();
    *gap.mutable_member() = member;
    gap.set_why("its clock could not be compared with the head's: its spans are left out");
    return;
  }
  collected->process.clock_error_ns = clock->error_ns;
  for (Timeline::Span& span : collected->spans) {
    span.process = number;
    span.begin_ns = std::max((*clock)(span.begin_ns), timeline_.begin_ns);
    span.end_ns = std::min((*clock)(span.end_ns), timeline_.end_ns);
    if (span.begin_ns > span.end_ns) continue;  // Before the trace, or after it.
    ++collected->process.spans;
    timeline_.spans.push_back(span);
  }
}

Timeline TimelineBuilder::Build() {
  for (auto& [key, collected] : collected_) {
    if (collected.shares_process && collected.spans.empty()) continue;  // Another one's spans are its, too.
    Align(&collected, timeline_.processes.size());
    timeline_.processes.push_back(std::move(collected.process));
  }
  std::stable_sort(timeline_.spans.begin(), timeline_.spans.end(),
                   [](const Timeline::Span& a, const Timeline::Span& b) {
                     return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
                   });
  return std::move(timeline_);
}

}  // namespace recon
