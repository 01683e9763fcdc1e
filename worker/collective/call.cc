#include "worker/collective/call.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr const char* kNames[] = {"all_reduce",     "reduce",   "broadcast", "all_gather",
                                  "reduce_scatter", "gather",   "scatter",   "all_to_all",
                                  "barrier",        "exchange", "send",      "recv"};
// Pieces that all servers have something of, and that overlap on the way.
constexpr uint64_t kPiecesMin = 8;
// Chunks of one place's part, far more than there can be.
constexpr int kPartShift = 32;

// Makes the segments of one call.
class Planner {
 public:
  Planner(const CallSpec& spec, const SetEpoch& epoch, size_t servers)
      : spec_(spec),
        epoch_(epoch),
        servers_(servers),
        me_(epoch.place()),
        members_(static_cast<uint32_t>(epoch.members_size())) {}

  absl::Status Plan(CallPlan* plan);

 private:
  absl::Status Wrong(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(kNames[static_cast<size_t>(spec_.kind)], ": ", what));
  }
  absl::StatusOr<uint32_t> PlaceOf(uint32_t rank) const;
  absl::Status CheckCounts(const std::vector<uint64_t>& counts, const char* what) const;
  void Add(CallPlan* plan, Combine combine, bool pair, uint32_t source, uint32_t receiver, uint64_t part,
           uint64_t values, const uint8_t* in, uint8_t* out) const;
  std::string Text() const;
  absl::Status PlanParts(CallPlan* plan);
  absl::Status PlanPairs(CallPlan* plan);
  absl::Status PlanMessage(CallPlan* plan);
  void KeepOwn(const uint8_t* in, uint8_t* out, uint64_t values) const {
    if (values > 0 && in != out) std::memcpy(out, in, values * ItemBytes(spec_.dtype));
  }

  const CallSpec& spec_;
  const SetEpoch& epoch_;
  const size_t servers_;
  const uint32_t me_, members_;
};

absl::StatusOr<uint32_t> Planner::PlaceOf(uint32_t rank) const {
  for (uint32_t place = 0; place < members_; ++place) {
    if (epoch_.members(static_cast<int>(place)).rank() == rank) return place;
  }
  return Wrong(absl::StrCat("rank ", rank, " is not among the set's ", members_, " members"));
}

absl::Status Planner::CheckCounts(const std::vector<uint64_t>& counts, const char* what) const {
  if (counts.size() == members_) return absl::OkStatus();
  return Wrong(absl::StrCat(counts.size(), " ", what, " sizes, the set has ", members_, " members"));
}

std::string Planner::Text() const {
  // The two ends of a message are one call.
  if (spec_.kind == CallKind::kSend || spec_.kind == CallKind::kReceive) {
    return absl::StrCat("a message of ", DTypeName(spec_.dtype));
  }
  std::string text = kNames[static_cast<size_t>(spec_.kind)];
  if (!spec_.name.empty()) absl::StrAppend(&text, " '", spec_.name, "'");
  if (spec_.kind == CallKind::kBarrier) return text;
  if (spec_.kind == CallKind::kAllReduce || spec_.kind == CallKind::kReduce ||
      spec_.kind == CallKind::kReduceScatter) {
    absl::StrAppend(&text, " ", ReduceOpName(spec_.op));
  }
  absl::StrAppend(&text, " ", DTypeName(spec_.dtype), spec_.shape);
  if (spec_.wire != Wire::kSame) absl::StrAppend(&text, " as ", WireName(spec_.wire));
  return text;
}

void Planner::Add(CallPlan* plan, Combine combine, bool pair, uint32_t source, uint32_t receiver,
                  uint64_t part, uint64_t values, const uint8_t* in, uint8_t* out) const {
  Segment segment;
  segment.header.kind = CallFrameKind::kChunk;
  segment.header.combine = combine;
  segment.header.op = spec_.op;
  segment.header.dtype = spec_.dtype;
  segment.header.wire = spec_.wire;
  segment.header.pair = pair ? 1 : 0;
  segment.header.place = me_;
  segment.header.rank = epoch_.members(static_cast<int>(me_)).rank();
  segment.header.members = members_;
  segment.header.source = source;
  segment.header.receiver = receiver;
  segment.header.total = BytesOnWire(spec_.dtype, spec_.wire, values);
  segment.first_chunk = part << kPartShift;
  segment.values = values;
  // The same at all who take part: it hangs on the size and the servers alone. A member's window is that of
  // all servers together: each is to have several chunks of it, so that it receives some while it sends
  // others.
  const uint64_t piece = segment.header.total / (kPiecesMin * servers_);
  const uint64_t bytes_max =
      std::max(limits::kCollectiveChunkBytesMax / servers_, limits::kFrameTargetBytesMin);
  const uint64_t bytes = std::clamp<uint64_t>(piece, limits::kCollectiveChunkBytesMin, bytes_max);
  segment.chunk_values = WireValuesIn(spec_.dtype, spec_.wire, bytes);
  segment.chunks = std::max<uint64_t>(1, (values + segment.chunk_values - 1) / segment.chunk_values);
  segment.in = IsSource(segment.header, me_) ? in : nullptr;
  segment.out = IsReceiver(segment.header, me_) ? out : nullptr;
  plan->segments.push_back(segment);
}

// A part of each place, in which all take part.
absl::Status Planner::PlanParts(CallPlan* plan) {
  const bool gather = spec_.kind == CallKind::kAllGather;
  const std::vector<uint64_t>& counts = gather ? spec_.out_counts : spec_.in_counts;
  RECON_RETURN_IF_ERROR(CheckCounts(counts, gather ? "output" : "input"));
  if (spec_.count != counts[me_]) {
    return Wrong(absl::StrCat(spec_.count, " values here, the sizes say ", counts[me_]));
  }
  const size_t width = ItemBytes(spec_.dtype);
  plan->in_turn = true;
  uint64_t offset = 0;
  for (uint32_t place = 0; place < members_; ++place) {
    if (gather) {
      uint8_t* const out = spec_.out + offset * width;
      if (place == me_) KeepOwn(spec_.in, out, counts[place]);
      Add(plan, Combine::kCopy, false, place, kEverybody, place, counts[place], spec_.in, out);
    } else {
      Add(plan, Combine::kReduce, false, kEverybody, place, place, counts[place], spec_.in + offset * width,
          spec_.out);
    }
    offset += counts[place];
  }
  return absl::OkStatus();
}

// From place to place, after all have said what they call.
absl::Status Planner::PlanPairs(CallPlan* plan) {
  Add(plan, Combine::kConcat, false, kEverybody, kEverybody, 0, 0, nullptr, nullptr);
  const uint32_t everybody = kEverybody;
  uint32_t root = everybody;
  if (spec_.kind != CallKind::kAllToAll) {
    RECON_ASSIGN_OR_RETURN(root, PlaceOf(spec_.peer));
  }
  const bool to_many = spec_.kind != CallKind::kGather && (root == everybody || root == me_);
  const bool from_many = spec_.kind != CallKind::kScatter && (root == everybody || root == me_);
  if (to_many) RECON_RETURN_IF_ERROR(CheckCounts(spec_.in_counts, "input"));
  if (from_many) RECON_RETURN_IF_ERROR(CheckCounts(spec_.out_counts, "output"));
  const size_t width = ItemBytes(spec_.dtype);
  const auto offset = [&](const std::vector<uint64_t>& counts, uint32_t place) {
    return width * std::accumulate(counts.begin(), counts.begin() + place, uint64_t{0});
  };
  const auto is_sent = [&](uint32_t source, uint32_t receiver) {
    if (spec_.kind == CallKind::kAllToAll) return true;
    return spec_.kind == CallKind::kGather ? receiver == root : source == root;
  };
  const auto add = [&](uint32_t source, uint32_t receiver) {
    if (!is_sent(source, receiver)) return;
    const uint64_t part = 1 + uint64_t{source} * members_ + receiver;
    if (source == me_) {
      const uint8_t* const in = to_many ? spec_.in + offset(spec_.in_counts, receiver) : spec_.in;
      Add(plan, Combine::kCopy, true, source, receiver, part,
          to_many ? spec_.in_counts[receiver] : spec_.count, in, nullptr);
    } else {
      uint8_t* const out = from_many ? spec_.out + offset(spec_.out_counts, source) : spec_.out;
      Add(plan, Combine::kCopy, true, source, receiver, part,
          from_many ? spec_.out_counts[source] : spec_.count, nullptr, out);
    }
  };
  // Both of a pair come to it in the same round, and to its directions in one order: whoever of them has
  // filled its window waits for what the other can send.
  for (uint32_t round = 0; round < members_; ++round) {
    const uint32_t other = (round + members_ - me_) % members_;
    if (other != me_) {
      add(std::min(me_, other), std::max(me_, other));
      add(std::max(me_, other), std::min(me_, other));
      continue;
    }
    if (!is_sent(me_, me_)) continue;
    const uint64_t in_values = to_many ? spec_.in_counts[me_] : spec_.count;
    const uint64_t out_values = from_many ? spec_.out_counts[me_] : spec_.count;
    if (in_values != out_values) {
      return Wrong(absl::StrCat("this member sends itself ", in_values, " values and expects ", out_values));
    }
    KeepOwn(to_many ? spec_.in + offset(spec_.in_counts, me_) : spec_.in,
            from_many ? spec_.out + offset(spec_.out_counts, me_) : spec_.out, in_values);
  }
  return absl::OkStatus();
}

absl::Status Planner::PlanMessage(CallPlan* plan) {
  RECON_ASSIGN_OR_RETURN(const uint32_t peer, PlaceOf(spec_.peer));
  if (peer == me_) return Wrong(absl::StrCat("rank ", spec_.peer, " is this member itself"));
  const bool sends = spec_.kind == CallKind::kSend;
  const uint32_t source = sends ? me_ : peer, receiver = sends ? peer : me_;
  plan->channel = ChannelOf(source, receiver, spec_.tag);
  Add(plan, Combine::kCopy, true, source, receiver, 0, spec_.count, spec_.in, spec_.out);
  return absl::OkStatus();
}

absl::Status Planner::Plan(CallPlan* plan) {
  plan->text = Text();
  if (spec_.by_name) {
    plan->channel = NamedChannel(!spec_.order.empty() ? absl::StrCat("order ", spec_.order)
                                 : spec_.name.empty() ? absl::StrCat("kind ", CallKindName(spec_.kind))
                                                      : absl::StrCat("name ", spec_.name));
  }
  const bool reduces = spec_.kind == CallKind::kAllReduce || spec_.kind == CallKind::kReduce ||
                       spec_.kind == CallKind::kReduceScatter;
  if (reduces) RECON_RETURN_IF_ERROR(CheckReduction(spec_.op, spec_.dtype, spec_.wire));
  if (!reduces && spec_.wire != Wire::kSame) return Wrong("only reductions travel in another format");
  switch (spec_.kind) {
    case CallKind::kAllReduce:
    case CallKind::kReduce: {
      uint32_t receiver = kEverybody;
      if (spec_.kind == CallKind::kReduce) {
        RECON_ASSIGN_OR_RETURN(receiver, PlaceOf(spec_.peer));
      }
      Add(plan, Combine::kReduce, false, kEverybody, receiver, 0, spec_.count, spec_.in, spec_.out);
      return absl::OkStatus();
    }
    case CallKind::kBroadcast: {
      RECON_ASSIGN_OR_RETURN(const uint32_t root, PlaceOf(spec_.peer));
      if (root == me_) KeepOwn(spec_.in, spec_.out, spec_.count);
      Add(plan, Combine::kCopy, false, root, kEverybody, 0, spec_.count, spec_.in, spec_.out);
      return absl::OkStatus();
    }
    case CallKind::kReduceScatter:
    case CallKind::kAllGather:
      return PlanParts(plan);
    case CallKind::kGather:
    case CallKind::kScatter:
    case CallKind::kAllToAll:
      return PlanPairs(plan);
    case CallKind::kBarrier:
      Add(plan, Combine::kConcat, false, kEverybody, kEverybody, 0, 0, nullptr, nullptr);
      return absl::OkStatus();
    case CallKind::kExchange:
      Add(plan, Combine::kConcat, false, kEverybody, kEverybody, 0, spec_.count, spec_.in, spec_.out);
      if (plan->segments[0].chunks > 1) return Wrong("too much for one chunk");
      return absl::OkStatus();
    case CallKind::kSend:
    case CallKind::kReceive:
      return PlanMessage(plan);
  }
  return absl::InternalError("an unknown call");
}

}  // namespace

const char* CallKindName(CallKind kind) { return kNames[static_cast<size_t>(kind)]; }

size_t ServerOf(uint64_t chunk, size_t servers) {
  return ((chunk >> kPartShift) + (chunk & 0xFFFFFFFF)) % servers;
}

bool CanShrink(const CallSpec& spec) {
  return spec.kind == CallKind::kAllReduce || spec.kind == CallKind::kBarrier ||
         spec.kind == CallKind::kBroadcast;
}

bool HasChannelOfItsName(const CallSpec& spec) {
  return spec.by_name && spec.order.empty() && !spec.name.empty() && spec.kind != CallKind::kSend &&
         spec.kind != CallKind::kReceive;
}

bool EndsByPairs(CallKind kind) {
  return kind == CallKind::kGather || kind == CallKind::kScatter || kind == CallKind::kAllToAll;
}

absl::StatusOr<CallPlan> PlanCall(const CallSpec& spec, const SetEpoch& epoch, size_t servers) {
  RECON_CHECK_GE(servers, 1);
  RECON_CHECK_LT(epoch.place(), epoch.members_size());
  CallPlan plan;
  RECON_RETURN_IF_ERROR(Planner(spec, epoch, servers).Plan(&plan));
  return plan;
}

}  // namespace recon
