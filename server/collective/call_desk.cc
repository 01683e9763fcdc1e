#include "server/collective/call_desk.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/collective/ticket.h"
#include "server/collective/combine.h"

namespace recon {
namespace {

constexpr absl::Duration kStoodStill = absl::Seconds(1);

ByteChain BodyOf(const google::protobuf::MessageLite& message) {
  return ByteChain::FromString(message.SerializeAsString());
}

}  // namespace

absl::Status CallDesk::Handle(uint64_t stream, CallFrame frame, absl::Time now, Answers* answers) {
  SetBook::Changes changes;
  ChunkBook::Decided decided;
  absl::Status status;
  const CallHeader& header = frame.header;
  sets_.Heard(stream, now);
  const bool of_epoch = header.kind == CallFrameKind::kChunk || header.kind == CallFrameKind::kFailCall ||
                        header.kind == CallFrameKind::kGone;
  const bool lets_in = header.kind == CallFrameKind::kJoin || header.kind == CallFrameKind::kEnter;
  if (of_epoch && !chunks_.SpeaksIn(stream, header)) {
    // It has nothing there that could wait.
    if (header.kind == CallFrameKind::kGone && !options_.head) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("a connection speaks in epoch ", header.epoch, " of set ",
                                                   header.set, ", in which it has no place"));
  }
  switch (header.kind) {
    case CallFrameKind::kHeartbeat:
      break;
    case CallFrameKind::kJoin:
      status = Join(stream, frame, now, &changes);
      break;
    case CallFrameKind::kEnter:
      status = Enter(stream, frame);
      break;
    case CallFrameKind::kLeave:
      sets_.Leave(stream, frame.text, &changes);
      break;
    case CallFrameKind::kChunk:
      if (chunks_.bytes() + frame.payload.size() > limits::kCollectiveHeldBytesMax) {
        status =
            absl::ResourceExhaustedError(absl::StrCat("calls that wait for members hold ", chunks_.bytes(),
                                                      " bytes, at most ", limits::kCollectiveHeldBytesMax));
        break;
      }
      status = chunks_.Add(stream, std::move(frame), now, &decided);
      break;
    case CallFrameKind::kFailCall:
      if (header.code == 0) {
        status = absl::InvalidArgumentError("a call that has failed without an error");
        break;
      }
      status = chunks_.FailCall(
          stream, header, absl::Status(static_cast<absl::StatusCode>(header.code), frame.text), &decided);
      break;
    case CallFrameKind::kGone:
      chunks_.Lose(header.set, header.epoch, header.lost, frame.text, &decided);
      break;
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("a frame of kind ", static_cast<int>(header.kind), " from a member"));
  }
  answers->is_member = status.ok() && (lets_in || of_epoch);
  Apply(&changes, &decided, answers);
  return status;
}

absl::Status CallDesk::Enter(uint64_t stream, const CallFrame& frame) {
  const CallHeader& header = frame.header;
  if (options_.head) {
    return absl::InvalidArgumentError("the head of a job takes no tickets: sets are joined there");
  }
  const bool shown =
      !options_.ticket_key.empty() && IsTicketFor(frame.payload.ToString(), options_.ticket_key, header);
  if (!shown) {
    return absl::UnavailableError(
        absl::StrCat("place ", header.place, " in epoch ", header.epoch, " of set ", header.set,
                     ": the ticket for it is not one for this server as it runs now; join the set again"));
  }
  return chunks_.Enter(stream, header);
}

absl::Status CallDesk::Join(uint64_t stream, const CallFrame& frame, absl::Time now,
                            SetBook::Changes* changes) {
  if (!options_.head) {
    return absl::FailedPreconditionError("this server is not the head of its job: sets are joined there");
  }
  JoinRequest request;
  if (!request.ParseFromString(frame.payload.ToString())) {
    return absl::InvalidArgumentError("a request to join that cannot be read");
  }
  if (sets_.empty()) looked_ = now;
  return sets_.Join(stream, request, now, changes);
}

void CallDesk::Apply(SetBook::Changes* changes, ChunkBook::Decided* decided, Answers* answers) {
  for (const auto& over : changes->over) chunks_.Lose(over.set, over.epoch, over.place, over.why, decided);
  const std::vector<OtherServer> others = options_.other_servers && !changes->epochs.empty()
                                              ? options_.other_servers()
                                              : std::vector<OtherServer>();
  for (auto& [stream, epoch] : changes->epochs) {
    CallHeader header;
    header.kind = CallFrameKind::kEpoch;
    header.set = epoch.set();
    header.epoch = epoch.epoch();
    header.place = epoch.place();
    header.members = static_cast<uint32_t>(epoch.members_size());
    // The book knows of the epoch, and who is lost from it, before anybody speaks there.
    (void)chunks_.Enter(stream, header);
    for (const OtherServer& other : others) {
      epoch.add_other_servers(other.address);
      epoch.add_tickets(TicketFor(other.ticket_key, header));
    }
    answers->frames.push_back({stream, {header, "", BodyOf(epoch)}});
  }
  for (const auto& [stream, lost] : changes->losses) {
    CallHeader header;
    header.kind = CallFrameKind::kLost;
    answers->frames.push_back({stream, {header, "", BodyOf(lost)}});
  }
  for (ChunkBook::Outcome& outcome : decided->failed) answers->frames.push_back(std::move(outcome));
  for (ChunkBook::Ready& ready : decided->ready) answers->ready.push_back(std::move(ready));
  for (auto& away : changes->sent_away) answers->sent_away.push_back(std::move(away));
}

void CallDesk::Ended(uint64_t stream, const std::string& why, Answers* answers) {
  SetBook::Changes changes;
  ChunkBook::Decided decided;
  sets_.Leave(stream, why, &changes);
  Apply(&changes, &decided, answers);
  SetBook::Changes none;
  ChunkBook::Decided hopeless;
  chunks_.End(stream, why, &hopeless);
  Apply(&none, &hopeless, answers);
}

void CallDesk::EvictSilent(absl::Time now, Answers* answers) {
  if (now - looked_ > kStoodStill) sets_.Forgive(now);
  looked_ = now;
  SetBook::Changes changes;
  ChunkBook::Decided decided;
  sets_.Evict(now, &changes);
  Apply(&changes, &decided, answers);
}

SetsReply CallDesk::Sets(absl::Time now) const {
  SetsReply reply = sets_.Sets();
  for (const ChunkBook::Waiting& waiting : chunks_.waiting()) {
    for (SetStatus& set : *reply.mutable_sets()) {
      if (set.set() != waiting.set || set.epoch() != waiting.epoch) continue;
      PendingCall* call = set.add_calls();
      call->set_what(waiting.what);
      call->set_sequence(waiting.sequence);
      call->set_waiting_seconds(absl::ToDoubleSeconds(now - waiting.since));
      const auto name = [&](uint32_t place) { return set.members(static_cast<int>(place)).name(); };
      for (const uint32_t place : waiting.here) call->add_here(name(place));
      for (const uint32_t place : waiting.missing) call->add_missing(name(place));
    }
  }
  return reply;
}

std::vector<ChunkBook::Outcome> AnswersOf(const ChunkBook::Ready& ready) {
  RECON_CHECK_EQ(ready.streams.size(), ready.contributions.size());
  const ByteChain result = CombineChunk(ready.chunk, ready.contributions);
  std::vector<ChunkBook::Outcome> outcomes;
  for (uint32_t place = 0; place < ready.streams.size(); ++place) {
    if (ready.streams[place] == 0) continue;
    CallFrame outcome{ready.chunk, "", IsReceiver(ready.chunk, place) ? result : ByteChain()};
    outcome.header.kind = CallFrameKind::kOutcome;
    outcomes.push_back({ready.streams[place], std::move(outcome)});
  }
  return outcomes;
}

}  // namespace recon
