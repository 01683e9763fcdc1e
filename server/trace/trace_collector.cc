#include "server/trace/trace_collector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/trace/span_pieces.h"

namespace recon {
namespace {

constexpr size_t kProcessesMax = limits::kMembersMax + limits::kServersMax;

TraceGap GapOf(const TraceMember& member, std::string why) {
  TraceGap gap;
  *gap.mutable_member() = member;
  gap.set_why(std::move(why));
  return gap;
}

}  // namespace

absl::Status TraceCollector::Begin(const std::string& client, Sink sink) {
  RECON_CHECK(sink != nullptr);
  MutexLock lock(&mu_);
  if (trace_ != 0) {
    const double left = static_cast<double>(std::max<int64_t>(0, end_ns_ - MonotonicNanos())) * 1e-9;
    return absl::FailedPreconditionError(
        absl::StrCat("a trace is being recorded already, for ", client_, ", one at a time; ",
                     end_ns_ == 0 ? "it has just begun" : absl::StrFormat("it ends in %.1f s", left)));
  }
  trace_ = RandomNonZero();
  client_ = client;
  sink_ = std::move(sink);
  end_ns_ = 0;
  spans_ = 0;
  asked_.clear();
  members_.clear();
  return absl::OkStatus();
}

void TraceCollector::Announce(const std::vector<TraceMember>& members, int64_t begin_ns, int64_t end_ns) {
  TraceUpdate update;
  update.mutable_begun()->set_begin_ns(begin_ns);
  update.mutable_begun()->set_end_ns(end_ns);
  update.mutable_begun()->mutable_members()->Add(members.begin(), members.end());
  MutexLock lock(&mu_);
  RECON_CHECK(trace_ != 0, "a trace is announced that has not begun");
  asked_ = members;
  end_ns_ = end_ns;
  sink_(update);
}

TraceCollector::Order TraceCollector::order(int64_t now_ns) const {
  MutexLock lock(&mu_);
  if (trace_ == 0 || now_ns >= end_ns_) return {};
  return {trace_, absl::Nanoseconds(end_ns_ - now_ns)};
}

absl::Status TraceCollector::CheckCurrent(uint64_t trace) const {
  MutexLock lock(&mu_);
  return CheckIsCurrent(trace);
}

absl::Status TraceCollector::CheckIsCurrent(uint64_t trace) const {
  if (trace != 0 && trace == trace_) return absl::OkStatus();
  return absl::FailedPreconditionError("no trace of that number is being recorded");
}

absl::StatusOr<TraceReceipt> TraceCollector::Deliver(TraceDelivery delivery, int64_t now_ns) {
  RECON_RETURN_IF_ERROR(trace::CheckPiece(delivery));
  MutexLock lock(&mu_);
  RECON_RETURN_IF_ERROR(CheckIsCurrent(delivery.trace()));
  const TraceMember& member = delivery.member();
  const Key key = {member.role(), member.name(), member.host(), member.process()};
  if (members_.size() >= kProcessesMax && members_.count(key) == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a trace has ", kProcessesMax, " processes at most"));
  }
  Progress& progress = members_[key];
  progress.member = member;
  progress.heard_ns = now_ns;
  progress.last = progress.last || delivery.last();
  const auto spans = static_cast<uint64_t>(delivery.spans().name_size());
  TraceReceipt receipt;
  if (progress.spans + spans > limits::kTraceMemberSpansMax || spans_ + spans > limits::kTraceSpansMax) {
    progress.cut_short = true;
    progress.last = true;
    receipt.set_stop(true);
    return receipt;
  }
  TraceUpdate update;
  *update.mutable_delivery() = std::move(delivery);
  if (sink_(update)) {
    progress.spans += spans;
    spans_ += spans;
  } else {
    progress.left_out = true;
  }
  return receipt;
}

bool TraceCollector::HeardOf(const TraceMember& member) const {
  const auto first = members_.lower_bound({member.role(), member.name(), "", 0});
  return first != members_.end() && std::get<0>(first->first) == member.role() &&
         std::get<1>(first->first) == member.name();
}

bool TraceCollector::complete() const {
  MutexLock lock(&mu_);
  return std::all_of(asked_.begin(), asked_.end(),
                     [this](const TraceMember& member)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return HeardOf(member); }) &&
         std::all_of(members_.begin(), members_.end(), [](const auto& entry) { return entry.second.last; });
}

std::vector<TraceGap> TraceCollector::Gaps(int64_t now_ns) const {
  std::vector<TraceGap> gaps;
  for (const TraceMember& member : asked_) {
    if (!HeardOf(member)) gaps.push_back(GapOf(member, "it has delivered nothing"));
  }
  for (const auto& [key, progress] : members_) {
    if (progress.cut_short) {
      gaps.push_back(GapOf(progress.member, absl::StrCat("what came after its first ", progress.spans,
                                                         " spans was too much to be kept")));
    } else if (!progress.last) {
      const double silent = static_cast<double>(std::min(now_ns, end_ns_) - progress.heard_ns) * 1e-9;
      gaps.push_back(GapOf(progress.member, absl::StrFormat("it has delivered nothing in the last %.1f s",
                                                            std::max(0.0, silent))));
    }
    if (progress.left_out) {
      gaps.push_back(GapOf(progress.member, "some of it was lost: the client has not read fast enough"));
    }
  }
  return gaps;
}

void TraceCollector::End(int64_t now_ns) {
  TraceUpdate update;
  MutexLock lock(&mu_);
  RECON_CHECK(trace_ != 0, "a trace ends that has not begun");
  update.mutable_outcome()->set_end_ns(std::min(now_ns, end_ns_));
  for (TraceGap& gap : Gaps(now_ns)) *update.mutable_outcome()->add_gaps() = std::move(gap);
  sink_(update);
  trace_ = 0;
  sink_ = nullptr;
}

}  // namespace recon
