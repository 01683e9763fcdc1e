#include "worker/collective/member_core.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// What a chunk without bytes counts of the window.
constexpr size_t kChunkCharge = 512;

size_t ChargeOf(const CallHeader& chunk) { return chunk.bytes + kChunkCharge; }

// Of a chunk's `values` values at `memory`; `wire` as they travel.
ByteChain PayloadOf(const Segment& segment, uint64_t first, uint64_t values) {
  ByteChain payload;
  if (values == 0 || segment.in == nullptr) return payload;
  const uint8_t* const from = segment.in + first * ItemBytes(segment.header.dtype);
  if (segment.header.wire == Wire::kSame) {
    // The caller's memory, which stays until the outcome is here.
    payload.Append(from, values * ItemBytes(segment.header.dtype), nullptr);
    return payload;
  }
  const size_t bytes = BytesOnWire(segment.header.dtype, segment.header.wire, values);
  std::shared_ptr<uint8_t[]> narrow(new uint8_t[bytes]);
  NarrowTo(segment.header.wire, reinterpret_cast<const float*>(from), values, narrow.get());
  payload.Append(narrow.get(), bytes, std::shared_ptr<const void>(narrow, narrow.get()));
  return payload;
}

std::string ChangeText(const std::string& set, const SetEpoch& epoch) {
  std::string text = absl::StrCat("set '", set, "' has changed, it is at epoch ", epoch.epoch(), " of ",
                                  epoch.members_size(), " members now");
  for (const SetMember& came : epoch.came()) {
    absl::StrAppend(&text, "; '", came.name(), "' came as rank ", came.rank());
  }
  for (const Departure& went : epoch.went()) {
    absl::StrAppend(&text, "; '", went.name(), "' (rank ", went.rank(), ") went: ", went.why());
  }
  return text;
}

}  // namespace

std::string MemberCore::NameOf(uint32_t place) const {
  if (!epoch_ || place >= static_cast<uint32_t>(epoch_->members_size())) return absl::StrCat("place ", place);
  const SetMember& member = epoch_->members(static_cast<int>(place));
  return absl::StrCat("'", member.name(), "' (rank ", member.rank(), ")");
}

std::string MemberCore::Described(const Call& call) const {
  std::string text = call.plan.text.empty() ? CallKindName(call.spec.kind) : call.plan.text;
  return absl::StrCat(text, " (call ", call.sequence, " of set '", options_.set, "')");
}

std::string MemberCore::OldestCall() const { return calls_.empty() ? "" : Described(calls_.begin()->second); }

size_t MemberCore::Window() const {
  const auto members = static_cast<size_t>(epoch_->members_size());
  return std::max(2 * (limits::kCollectiveChunkBytesMax + kChunkCharge),
                  std::min(limits::kCollectiveWindowBytes, limits::kCollectiveHeldBytes / members));
}

absl::Status MemberCore::Submit(const CallSpec& spec, Done done) {
  RECON_RETURN_IF_ERROR(broken_);
  if (!unknown_.empty()) return absl::FailedPreconditionError(unknown_);
  if (calls_.size() >= limits::kCollectiveCallsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("set '", options_.set, "' has ", calls_.size(), " calls under way: wait for some"));
  }
  RECON_RETURN_IF_ERROR(CheckName(spec));
  Call call;
  call.spec = spec;
  call.done = std::move(done);
  if (options_.shrink && CanShrink(spec) && spec.in != nullptr && spec.in == spec.out) {
    call.kept.assign(spec.in, spec.in + spec.count * ItemBytes(spec.dtype));
    call.spec.in = call.kept.data();
  }
  const bool begins = epoch_ && !next_;
  if (begins) {
    RECON_ASSIGN_OR_RETURN(call.plan, PlanCall(call.spec, *epoch_, epoch_servers_.size()));
  }
  if (HasChannelOfItsName(spec)) names_.insert(spec.name);
  const uint64_t id = ++last_call_;
  Call& kept = calls_[id] = std::move(call);
  if (begins) Begin(id, &kept);
  Pump();
  return absl::OkStatus();
}

absl::Status MemberCore::CheckName(const CallSpec& spec) const {
  if (!HasChannelOfItsName(spec)) return absl::OkStatus();
  if (names_.count(spec.name) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(CallKindName(spec.kind), " '", spec.name, "': a call of set '", options_.set,
                     "' with this name is under way: wait for it, or give another"));
  }
  if (channels_.size() < limits::kCollectiveCallsMax) return absl::OkStatus();
  if (channels_.count(NamedChannel(absl::StrCat("name ", spec.name))) != 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("set '", options_.set, "' has ", channels_.size(), " names of calls: use one again"));
}

void MemberCore::Begin(uint64_t id, Call* call) {
  Channel& channel = channels_[call->plan.channel];
  channel.by_name = call->spec.by_name;
  call->sequence = HasChannelOfItsName(call->spec) ? channel.next_sequence : channel.next_sequence++;
  call->begun = true;
  call->segment = call->piece = 0;
  call->all_sent = call->put_off = false;
  call->failed = absl::OkStatus();
  call->lost = kNobody;
  RECON_CHECK_EQ(call->under_way, 0, "a call begins anew while chunks of it are under way");
  RECON_CHECK(!call->plan.segments.empty());
  channel.unsent.push_back(id);
  sending_.insert(call->plan.channel);
  const bool is_new = channel.by_sequence.insert({call->sequence, id}).second;
  RECON_CHECK(is_new, "two calls of a channel have one number");
}

const SetEpoch* MemberCore::Acknowledge() {
  unknown_.clear();
  if (!epoch_) return nullptr;
  const auto is_over = [this](const auto& loss) { return loss.first < epoch_->epoch(); };
  lost_.erase(std::remove_if(lost_.begin(), lost_.end(), is_over), lost_.end());
  return &*epoch_;
}

std::vector<uint32_t> MemberCore::lost() const {
  std::vector<uint32_t> ranks;
  for (const auto& [epoch, rank] : lost_) ranks.push_back(rank);
  return ranks;
}

void MemberCore::NoteLoss(uint64_t epoch, uint32_t rank) {
  const std::pair<uint64_t, uint32_t> loss{epoch, rank};
  if (std::find(lost_.begin(), lost_.end(), loss) == lost_.end()) lost_.push_back(loss);
}

bool MemberCore::IsFull(const Channel& channel) const {
  if (!channel.by_name) return channel.bytes_under_way >= Window();
  return channel.bytes_under_way > 0 && named_bytes_under_way_ >= Window();
}

void MemberCore::Pump() {
  if (!epoch_ || next_) return;
  for (auto it = sending_.begin(); it != sending_.end();) {
    Channel& channel = channels_.at(*it);
    while (!channel.unsent.empty()) {
      const auto found = calls_.find(channel.unsent.front());
      RECON_CHECK(found != calls_.end(), "a call is to be sent that has ended");
      Call& call = found->second;
      if (IsFull(channel)) break;
      SendNext(&channel, &call);
      if (call.all_sent) channel.unsent.pop_front();
    }
    it = channel.unsent.empty() ? sending_.erase(it) : std::next(it);
  }
}

void MemberCore::SendNext(Channel* channel, Call* call) {
  RECON_CHECK_LT(call->segment, call->plan.segments.size());
  const Segment& segment = call->plan.segments[call->segment];
  RECON_CHECK_LT(call->piece, segment.chunks);
  const uint64_t first = call->piece * segment.chunk_values;
  const uint64_t values = std::min(segment.chunk_values, segment.values - first);
  CallFrame frame{segment.header, call->plan.text, PayloadOf(segment, first, values)};
  frame.header.set = epoch_->set();
  frame.header.epoch = epoch_->epoch();
  frame.header.channel = call->plan.channel;
  frame.header.sequence = call->sequence;
  frame.header.chunk = segment.first_chunk + call->piece;
  frame.header.bytes = BytesOnWire(segment.header.dtype, segment.header.wire, values);
  channel->bytes_under_way += ChargeOf(frame.header);
  if (channel->by_name) named_bytes_under_way_ += ChargeOf(frame.header);
  ++call->under_way;
  const size_t server = epoch_servers_[ServerOf(frame.header.chunk, epoch_servers_.size())];
  Send(server, std::move(frame));
  call->all_sent = !StepOn(call->plan, &call->segment, &call->piece);
}

bool MemberCore::StepOn(const CallPlan& plan, size_t* segment, uint64_t* piece) {
  const std::vector<Segment>& segments = plan.segments;
  if (!plan.in_turn) {
    if (++*piece < segments[*segment].chunks) return true;
    *piece = 0;
    return ++*segment < segments.size();
  }
  const auto has_piece = [piece](const Segment& one) { return *piece < one.chunks; };
  auto next =
      std::find_if(segments.begin() + static_cast<ptrdiff_t>(*segment) + 1, segments.end(), has_piece);
  if (next == segments.end()) {
    ++*piece;
    next = std::find_if(segments.begin(), segments.end(), has_piece);
  }
  *segment = static_cast<size_t>(next - segments.begin());
  return next != segments.end();
}

void MemberCore::OnFrame(size_t server, const CallFrame& frame) {
  if (frame.header.kind == CallFrameKind::kEpoch && server == 0) OnEpoch(frame);
  if (frame.header.kind == CallFrameKind::kLost && server == 0) OnLost(frame);
  if (frame.header.kind == CallFrameKind::kOutcome) OnOutcome(server, frame);
  Pump();
}

void MemberCore::UseServers() {
  epoch_servers_ = {0};
  for (const std::string& address : epoch_->other_servers()) {
    auto found = std::find(servers_.begin() + 1, servers_.end(), address);
    if (found == servers_.end()) found = servers_.insert(servers_.end(), address);
    epoch_servers_.push_back(static_cast<size_t>(found - servers_.begin()));
  }
}

void MemberCore::Send(size_t server, CallFrame frame) {
  if (server != 0 && entered_.insert({server, epoch_->epoch()}).second) {
    const auto& addresses = epoch_->other_servers();
    const auto found = std::find(addresses.begin(), addresses.end(), servers_[server]);
    RECON_CHECK(found != addresses.end(), "a frame for a server that the epoch has not");
    CallFrame enter;
    enter.header.kind = CallFrameKind::kEnter;
    enter.header.set = epoch_->set();
    enter.header.epoch = epoch_->epoch();
    enter.header.place = epoch_->place();
    enter.header.members = static_cast<uint32_t>(epoch_->members_size());
    enter.payload = ByteChain::FromString(epoch_->tickets(static_cast<int>(found - addresses.begin())));
    outgoing_.push_back({server, std::move(enter)});
    for (const CallFrame& gone : gone_) outgoing_.push_back({server, gone});
  }
  outgoing_.push_back({server, std::move(frame)});
}

void MemberCore::OnEpoch(const CallFrame& frame) {
  SetEpoch epoch;
  if (!epoch.ParseFromString(frame.payload.ToString()) || epoch.members_size() == 0 ||
      epoch.tickets_size() != epoch.other_servers_size() ||
      epoch.place() >= static_cast<uint32_t>(epoch.members_size())) {
    return OnBroken(absl::InternalError("the head sent an epoch that cannot be read"));
  }
  if (epoch_) {
    for (const Departure& went : epoch.went()) NoteLoss(epoch.epoch() - 1, went.rank());
    last_change_ = ChangeText(options_.set, epoch);
    // Losses alone are what shrinking is for.
    if (!options_.shrink || epoch.came_size() > 0 || !unknown_.empty()) unknown_ = last_change_;
    for (const SetEpoch* over : {&*epoch_, next_ ? &*next_ : nullptr}) {
      if (over != nullptr) TellOthers(*over, kEverybody, last_change_);
    }
  }
  next_ = std::move(epoch);
  early_losses_.clear();
  BeginNextEpochIfQuiet();
}

void MemberCore::BeginNextEpochIfQuiet() {
  if (!next_) return;
  for (const auto& [id, call] : calls_) {
    if (call.under_way > 0) return;
  }
  epoch_ = std::exchange(next_, std::nullopt);
  const auto is_earlier = [this](const auto& entered) { return entered.second < epoch_->epoch(); };
  for (auto it = entered_.begin(); it != entered_.end();)
    it = is_earlier(*it) ? entered_.erase(it) : std::next(it);
  UseServers();
  gone_.clear();
  for (const MembersLost& lost : std::exchange(early_losses_, {})) {
    for (const Departure& went : lost.went()) TellOthers(*epoch_, went.place(), went.why());
  }
  channels_.clear();
  sending_.clear();
  named_bytes_under_way_ = 0;
  std::vector<uint64_t> ids;
  for (const auto& [id, call] : calls_) ids.push_back(id);
  for (const uint64_t id : ids) {
    Call& call = calls_[id];
    const bool goes_on = !call.begun || (options_.shrink && CanShrink(call.spec));
    if (!unknown_.empty() || !goes_on) {
      End(id, absl::FailedPreconditionError(last_change_));
      continue;
    }
    absl::StatusOr<CallPlan> plan = PlanCall(call.spec, *epoch_, epoch_servers_.size());
    if (!plan.ok()) {
      End(id, plan.status());
      continue;
    }
    call.plan = *std::move(plan);
    Begin(id, &call);
  }
}

void MemberCore::OnLost(const CallFrame& frame) {
  MembersLost lost;
  if (!lost.ParseFromString(frame.payload.ToString()) || !epoch_) return;
  for (const Departure& went : lost.went()) NoteLoss(lost.epoch(), went.rank());
  if (next_ && lost.epoch() == next_->epoch()) return early_losses_.push_back(lost);
  if (lost.epoch() != epoch_->epoch()) return;
  for (const Departure& went : lost.went()) TellOthers(*epoch_, went.place(), went.why());
}

// The servers that are not the head know of losses what members tell them. Where it has not entered it has
// nothing that could wait.
void MemberCore::TellOthers(const SetEpoch& of, uint32_t lost, const std::string& why) {
  CallFrame gone;
  gone.header.kind = CallFrameKind::kGone;
  gone.header.set = of.set();
  gone.header.epoch = of.epoch();
  gone.header.place = of.place();
  gone.header.members = static_cast<uint32_t>(of.members_size());
  gone.header.lost = lost;
  gone.text = why;
  for (const size_t server : epoch_servers_) {
    if (entered_.count({server, of.epoch()}) != 0) outgoing_.push_back({server, gone});
  }
  if (of.epoch() == epoch_->epoch()) gone_.push_back(std::move(gone));
}

void MemberCore::OnOutcome(size_t server, const CallFrame& frame) {
  const CallHeader& header = frame.header;
  if (!epoch_ || header.set != epoch_->set() || header.epoch != epoch_->epoch()) return;
  const auto channel = channels_.find(header.channel);
  if (channel == channels_.end()) return;
  const auto by_sequence = channel->second.by_sequence.find(header.sequence);
  if (by_sequence == channel->second.by_sequence.end()) return;
  const uint64_t id = by_sequence->second;
  RECON_CHECK(calls_.count(id) == 1, "a channel knows a call that has ended");
  Call& call = calls_[id];
  if (call.under_way == 0) return;
  --call.under_way;
  const size_t charged = std::min(channel->second.bytes_under_way, ChargeOf(header));
  channel->second.bytes_under_way -= charged;
  if (channel->second.by_name) named_bytes_under_way_ -= std::min(named_bytes_under_way_, charged);
  if (header.code == 0) {
    const absl::Status taken = call.failed.ok() ? TakeResult(call, frame) : absl::OkStatus();
    if (!taken.ok()) FailCall(id, &call, taken, kNobody, std::nullopt);
  } else {
    FailCall(id, &call, absl::Status(static_cast<absl::StatusCode>(header.code), frame.text), header.lost,
             server);
  }
  EndIfDone(id);
  BeginNextEpochIfQuiet();
}

absl::Status MemberCore::TakeResult(const Call& call, const CallFrame& frame) {
  const CallHeader& header = frame.header;
  const auto is_its = [&](const Segment& segment) {
    return header.chunk >= segment.first_chunk && header.chunk < segment.first_chunk + segment.chunks;
  };
  const auto& segments = call.plan.segments;
  const auto segment = std::find_if(segments.begin(), segments.end(), is_its);
  if (segment == segments.end())
    return absl::InternalError("an outcome of a chunk that the call does not have");
  if (segment->out == nullptr) return absl::OkStatus();
  const uint64_t first = (header.chunk - segment->first_chunk) * segment->chunk_values;
  uint64_t values = std::min(segment->chunk_values, segment->values - first);
  if (segment->header.combine == Combine::kConcat) values *= static_cast<uint64_t>(epoch_->members_size());
  const Wire wire = segment->header.wire;
  if (frame.payload.size() != BytesOnWire(segment->header.dtype, wire, values)) {
    return absl::InternalError(
        absl::StrCat("a result of ", frame.payload.size(), " bytes for ", values, " values"));
  }
  uint8_t* const out = segment->out + first * ItemBytes(segment->header.dtype);
  if (wire == Wire::kSame) {
    frame.payload.CopyTo(out, frame.payload.size());
    return absl::OkStatus();
  }
  ByteReader reader(frame.payload);
  WidenNext(wire, &reader, values, reinterpret_cast<float*>(out));
  return absl::OkStatus();
}

void MemberCore::FailCall(uint64_t id, Call* call, const absl::Status& why, uint32_t lost,
                          std::optional<size_t> told_by) {
  if (!call->failed.ok()) return;
  call->lost = lost;
  std::string text = absl::StrCat(Described(*call), ": ");
  if (lost < kNobody) absl::StrAppend(&text, "member ", NameOf(lost), " is lost: ");
  const absl::StatusCode code = lost == kEverybody ? absl::StatusCode::kFailedPrecondition : why.code();
  call->failed = absl::Status(code, absl::StrCat(text, why.message()));
  channels_[call->plan.channel].unsent.remove(id);
  for (const size_t server : epoch_servers_) {
    if (told_by == server) continue;
    CallHeader header;
    header.kind = CallFrameKind::kFailCall;
    header.set = epoch_->set();
    header.epoch = epoch_->epoch();
    header.place = epoch_->place();
    header.members = static_cast<uint32_t>(epoch_->members_size());
    header.channel = call->plan.channel;
    header.sequence = call->sequence;
    header.code = static_cast<uint32_t>(why.code());
    header.lost = lost;
    Send(server, {header, std::string(why.message()), {}});
  }
}

void MemberCore::EndIfDone(uint64_t id) {
  const auto found = calls_.find(id);
  RECON_CHECK(found != calls_.end());
  Call& call = found->second;
  if (call.under_way > 0 || (call.failed.ok() && !call.all_sent)) return;
  // It is begun again when the head has said who is left.
  call.put_off = !call.failed.ok() && call.lost != kNobody && options_.shrink && CanShrink(call.spec);
  if (!call.put_off) End(id, call.failed);
}

void MemberCore::End(uint64_t id, const absl::Status& status) {
  const auto found = calls_.find(id);
  RECON_CHECK(found != calls_.end(), "a call ends twice");
  Call& call = found->second;
  LeaveChannel(id, call, status.ok());
  finished_.push_back(
      {std::move(call.done), status, epoch_ ? static_cast<uint32_t>(epoch_->members_size()) : 0});
  calls_.erase(found);
}

void MemberCore::LeaveChannel(uint64_t id, const Call& call, bool well) {
  const bool named = HasChannelOfItsName(call.spec);
  if (named) names_.erase(call.spec.name);
  const auto channel = channels_.find(call.plan.channel);
  if (channel == channels_.end()) return;
  auto& by_sequence = channel->second.by_sequence;
  const auto found = by_sequence.find(call.sequence);
  if (found == by_sequence.end() || found->second != id) return;
  by_sequence.erase(found);
  if (!named) return;
  // All members know how it ended, and servers remember a call that has failed by its number.
  if (!well || EndsByPairs(call.spec.kind)) ++channel->second.next_sequence;
  if (channel->second.next_sequence > 0) return;
  sending_.erase(channel->first);
  channels_.erase(channel);
}

void MemberCore::OnBroken(const absl::Status& why) {
  if (broken_.ok()) broken_ = why;
  channels_.clear();
  sending_.clear();
  while (!calls_.empty()) End(calls_.begin()->first, why);
}

}  // namespace recon
