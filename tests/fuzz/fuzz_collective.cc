#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/collective/ticket.h"
#include "google/protobuf/stubs/logging.h"
#include "server/collective/call_desk.h"
#include "tests/fuzz/require.h"
#include "tests/support/choices.h"

// What the streams of collective calls may send a head and another server, in any order. Two members do what
// members do; others send anything, among it what they have been told, and their streams end at any moment.
//
// - A frame that is taken has one outcome at most, which goes to who sent it, and nobody else hears of it.
// - A result is what the sources have sent.
// - What a member sends as it should is not refused.
// - The other server hears nobody in an epoch who has not shown it a ticket for that.
// - There are no more sets than streams, and whoever looks at them gets an answer.
//
// In the end the others have gone, and two members begin a set and add up their bytes.
namespace recon {
namespace {

class Program {
 public:
  Program(const uint8_t* data, size_t size)
      : choices_(data, size),
        head_({true,
               {absl::Seconds(3), 7},
               [] {
                 return std::vector<CallDesk::OtherServer>{{"other:1", kKey}};
               },
               ""}),
        other_({false, {absl::Seconds(3), 7}, nullptr, kKey}) {}

  void Run() {
    for (const uint64_t stream : {1, 2}) JoinHonest(stream, "honest");
    while (!choices_.empty()) Step();
    for (uint64_t stream = 1; stream <= last_stream_; ++stream) End(&head_, stream);
    Require(!head_.has_members(), "a set ends with its members");
    Require(head_.Sets(now_).sets_size() == 0, "nothing is left of sets that ended");
    const std::set<uint64_t> late = {last_stream_ + 1, last_stream_ + 2};
    for (const uint64_t stream : late) JoinHonest(stream, "last");
    const size_t before = results_;
    CallHonest(late, Combine::kReduce);
    Require(results_ == before + 2, "who comes later can call");
  }

 private:
  static constexpr uint32_t kStrangers = 6;
  static constexpr const char* kKey = "that the other server has drawn";
  using Key = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t>;  // Of a chunk.
  static Key KeyOf(const CallHeader& header) {
    return {header.set, header.epoch, header.channel, header.sequence, header.chunk};
  }
  struct Sent {
    std::map<uint64_t, int> open;            // Streams, and how many outcomes they wait for.
    std::map<uint32_t, std::string> newest;  // By place.
  };

  void Step() {
    switch (choices_.Of(9)) {
      case 0:
        now_ += absl::Milliseconds(choices_.Of(4) == 0 ? 900 : 50);
        for (const uint64_t stream : std::set<uint64_t>(honest_)) Send(&head_, stream, {}).IgnoreError();
        Apply(&head_, [this](auto* answers) { head_.EvictSilent(now_, answers); }).IgnoreError();
        return;
      case 1:
        return CallHonest(honest_, static_cast<Combine>(choices_.Of(3)));
      case 2:
        return Look();
      case 3:
        return End(AnyDesk(), Stranger());
      case 4:
        return SendBytes();
      case 5:
        return JoinAsStranger();
      case 6:
        return EnterAsStranger();
      default:
        Send(AnyDesk(), Stranger(), AnyFrame()).IgnoreError();
    }
  }

  CallDesk* AnyDesk() { return choices_.Of(4) == 0 ? &other_ : &head_; }
  // Whose stream has ended comes back with another.
  uint64_t Stranger() {
    uint64_t& stream = strangers_[choices_.Of(kStrangers)];
    if (stream == 0 || ended_.count(stream) != 0) stream = ++last_stream_;
    return stream;
  }

  void Look() {
    const SetsReply sets = head_.Sets(now_);
    Require(sets.sets_size() <= static_cast<int>(kStrangers) + 2, "no more sets than streams");
    for (const SetStatus& set : sets.sets()) {
      for (const PendingCall& call : set.calls()) {
        Require(call.here_size() + call.missing_size() <= set.members_size(), "a call is of members");
      }
    }
  }

  // Tells everybody what comes of it.
  template <typename What>
  absl::Status Apply(CallDesk* desk, What what) {
    CallDesk::Answers answers;
    absl::Status status;
    if constexpr (std::is_void_v<decltype(what(&answers))>) {
      what(&answers);
    } else {
      status = what(&answers);
    }
    for (const ChunkBook::Outcome& outcome : answers.frames) Hear(desk, outcome);
    for (const ChunkBook::Ready& ready : answers.ready) {
      for (const ChunkBook::Outcome& outcome : AnswersOf(ready)) Hear(desk, outcome);
    }
    for (const auto& [stream, why] : answers.sent_away) End(desk, stream);
    return status;
  }

  void Hear(CallDesk* desk, const ChunkBook::Outcome& outcome) {
    const absl::StatusOr<CallFrame> frame = DecodeCallFrame(EncodeCallFrame(outcome.frame));
    Require(frame.ok(), "what a server says can be read");
    if (frame->header.kind == CallFrameKind::kEpoch) {
      Require(epochs_[outcome.stream].ParseFromString(frame->payload.ToString()), "an epoch can be read");
      last_set_ = epochs_[outcome.stream].set();
    }
    if (frame->header.kind != CallFrameKind::kOutcome || ended_.count(outcome.stream) != 0) return;
    Sent& sent = sent_[{desk, KeyOf(frame->header)}];
    Require(sent.open[outcome.stream]-- > 0, "one outcome for what was sent");
    if (frame->header.code != 0) return;
    ++results_;
    CheckResult(frame->header, sent, frame->payload.ToString());
  }

  // `header` is that of who came first.
  static void CheckResult(const CallHeader& header, const Sent& sent, const std::string& result) {
    if (result.empty()) return;
    const auto of = [&](uint32_t place) {
      const auto found = sent.newest.find(place);
      Require(found != sent.newest.end(), "a result needs what its sources sent");
      return found->second;
    };
    if (header.combine == Combine::kCopy) return Require(result == of(header.source), "a copy is the same");
    std::string all;
    for (uint32_t place = 0; place < header.members; ++place) all += of(place);
    if (header.combine == Combine::kConcat) return Require(result == all, "parts come in order");
    Require(result.size() == header.bytes, "a sum is as long as its parts");
    if (header.dtype != DType::kUint8 || header.op != ReduceOp::kSum || header.wire != Wire::kSame) return;
    for (size_t i = 0; i < result.size(); ++i) {
      unsigned sum = 0;
      for (uint32_t place = 0; place < header.members; ++place) {
        sum += static_cast<uint8_t>(all[place * header.bytes + i]);
      }
      Require(static_cast<uint8_t>(result[i]) == static_cast<uint8_t>(sum), "a sum is that of its parts");
    }
  }

  // What the server does with a frame of a stream, and with the stream if it is not taken.
  absl::Status Send(CallDesk* desk, uint64_t stream, const CallFrame& frame) {
    const absl::StatusOr<CallFrame> decoded = DecodeCallFrame(EncodeCallFrame(frame));
    absl::Status status = decoded.status();
    if (decoded.ok()) {
      const CallHeader& header = decoded->header;
      // The outcome may come at once; of what is refused none comes.
      Sent& sent = sent_[{desk, KeyOf(header)}];
      const Sent before = sent;
      if (header.kind == CallFrameKind::kChunk) {
        ++sent.open[stream];
        sent.newest[header.place] = decoded->payload.ToString();
      }
      status = Apply(desk, [&](auto* answers) { return desk->Handle(stream, *decoded, now_, answers); });
      if (!status.ok()) sent = before;
      if (desk == &other_ && status.ok()) NoteHeard(stream, *decoded);
    }
    if (!status.ok()) End(desk, stream);
    return status;
  }

  void NoteHeard(uint64_t stream, const CallFrame& frame) {
    const CallHeader& header = frame.header;
    const auto key = std::tuple(stream, header.set, header.epoch);
    if (header.kind == CallFrameKind::kEnter) {
      Require(IsTicketFor(frame.payload.ToString(), kKey, header), "who enters shows a ticket");
      entered_.insert(key);
    }
    const bool of_epoch = header.kind == CallFrameKind::kChunk || header.kind == CallFrameKind::kFailCall;
    Require(!of_epoch || entered_.count(key) != 0, "who speaks has entered");
  }

  void End(CallDesk* desk, uint64_t stream) {
    Apply(desk, [&](auto* answers) { desk->Ended(stream, "it ended", answers); }).IgnoreError();
    if (!ended_.insert(stream).second) return;
    epochs_.erase(stream);
    honest_.erase(stream);
    End(desk == &head_ ? &other_ : &head_, stream);
  }

  void JoinHonest(uint64_t stream, const std::string& set) {
    JoinRequest request;
    request.set_set(set);
    request.set_member(absl::StrCat("member ", stream));
    request.set_rank(static_cast<uint32_t>(honest_.size() % 2));
    request.set_size(2);
    honest_.insert(stream);
    Require(Join(stream, request).ok(), "a member may join");
  }
  absl::Status Join(uint64_t stream, const JoinRequest& request) {
    CallFrame frame;
    frame.header.kind = CallFrameKind::kJoin;
    frame.payload = ByteChain::FromString(request.SerializeAsString());
    return Send(&head_, stream, frame);
  }
  // One of the sets there are, by its own rules, or by others.
  void JoinAsStranger() {
    const uint32_t set = choices_.Of(4);
    const bool fits = choices_.Of(4) > 0;
    JoinRequest request;
    request.set_set(set == 0 ? "honest" : absl::StrCat("set ", set));
    request.set_member(choices_.Bytes(4));
    request.set_elastic(fits ? set == 2 : choices_.Yes());
    request.set_shrink(fits ? set > 1 : choices_.Yes());
    request.set_rank(fits ? choices_.Of(2) : choices_.Number32());
    request.set_size(fits ? 1 + set % 2 : choices_.Of(2) == 0 ? choices_.Number32() : choices_.Of(4));
    if (set == 0 && fits) request.set_size(2);
    request.set_patience_ms(choices_.Of(4) == 0 ? choices_.Number32() : 0);
    Join(Stranger(), request).IgnoreError();
  }

  // A call in which both members of a set take part, one after the other.
  void CallHonest(const std::set<uint64_t>& members, Combine combine) {
    const uint64_t sequence = ++sequence_;
    CallDesk* const desk = AnyDesk();
    const auto bytes = combine == Combine::kCopy ? 4 : 1 + sequence % 5;
    for (const uint64_t stream : std::set<uint64_t>(members)) {
      const auto epoch = epochs_.find(stream);
      if (epoch == epochs_.end() || honest_.count(stream) == 0) continue;
      CallFrame frame;
      frame.text = "call";
      CallHeader& header = frame.header;
      header.kind = CallFrameKind::kChunk;
      header.combine = combine;
      header.set = epoch->second.set();
      header.epoch = epoch->second.epoch();
      header.place = epoch->second.place();
      header.members = static_cast<uint32_t>(epoch->second.members_size());
      header.source = combine == Combine::kCopy ? 0 : kEverybody;
      header.receiver = kEverybody;
      header.sequence = sequence;
      header.bytes = header.total = bytes;
      const bool is_source = IsSource(header, header.place);
      if (is_source)
        frame.payload = ByteChain::FromString(std::string(bytes, static_cast<char>(stream + sequence)));
      if (desk == &other_ && entered_.count({stream, header.set, header.epoch}) == 0) {
        Require(Send(desk, stream, EnterOf(epoch->second)).ok(), "a member's ticket is taken");
      }
      Require(Send(desk, stream, frame).ok(), "what a member sends as it should is taken");
    }
  }

  static CallFrame EnterOf(const SetEpoch& told) {
    CallFrame frame;
    CallHeader& header = frame.header;
    header.kind = CallFrameKind::kEnter;
    header.set = told.set();
    header.epoch = told.epoch();
    header.place = told.place();
    header.members = static_cast<uint32_t>(told.members_size());
    Require(told.tickets_size() == 1, "an epoch has a ticket for each other server");
    frame.payload = ByteChain::FromString(told.tickets(0));
    return frame;
  }

  // A stranger's own ticket, or one of which a byte or the place is another.
  void EnterAsStranger() {
    const uint64_t stream = Stranger();
    const auto told = epochs_.find(stream);
    if (told == epochs_.end()) return;
    CallFrame frame = EnterOf(told->second);
    if (choices_.Of(4) == 0) frame.header.place ^= choices_.Of(4);
    if (choices_.Of(4) == 0) {
      std::string ticket = frame.payload.ToString();
      ticket[choices_.Of(static_cast<uint32_t>(ticket.size()))] ^= static_cast<char>(choices_.Byte());
      frame.payload = ByteChain::FromString(ticket);
    }
    Send(&other_, stream, frame).IgnoreError();
  }

  // Fields that are possible, most of them, of an epoch that somebody was told of.
  CallFrame AnyFrame() {
    static constexpr CallFrameKind kKinds[] = {
        CallFrameKind::kChunk, CallFrameKind::kChunk, CallFrameKind::kFailCall, CallFrameKind::kGone,
        CallFrameKind::kLeave, CallFrameKind::kChunk, CallFrameKind::kOutcome,  CallFrameKind::kHeartbeat};
    CallFrame frame;
    CallHeader& header = frame.header;
    header.kind = kKinds[choices_.Of(8)];
    header.combine = static_cast<Combine>(choices_.Of(3));
    header.op = static_cast<ReduceOp>(choices_.Of(5));
    header.dtype = static_cast<DType>(choices_.Of(8));
    header.wire = static_cast<Wire>(choices_.Of(8) == 0 ? choices_.Of(4) : 0);
    header.pair = choices_.Of(4) == 0 ? 1 : 0;
    const SetEpoch* told =
        epochs_.empty()
            ? nullptr
            : &std::next(epochs_.begin(), choices_.Of(static_cast<uint32_t>(epochs_.size())))->second;
    header.set = told != nullptr ? told->set() : last_set_ + choices_.Of(3);
    header.epoch = (told != nullptr ? told->epoch() : 1) + choices_.Of(3) - (choices_.Of(8) == 0 ? 1 : 0);
    header.members = told != nullptr && choices_.Of(4) > 0 ? static_cast<uint32_t>(told->members_size())
                     : choices_.Of(16) == 0                ? choices_.Number32()
                                                           : 1 + choices_.Of(4);
    header.place = choices_.Of(16) == 0 ? choices_.Number32() : choices_.Of(4);
    header.source = header.combine != Combine::kCopy ? kEverybody : choices_.Of(4);
    header.receiver = choices_.Yes() ? kEverybody : choices_.Of(4);
    header.code = choices_.Of(4);
    header.lost = choices_.Of(4) == 0 ? choices_.Number32() : kNobody - 1 + choices_.Of(4);
    header.channel = choices_.Of(4) == 0 ? choices_.Number() : 0;
    header.sequence = choices_.Of(4) == 0 ? choices_.Number() : sequence_ + choices_.Of(3);
    header.chunk = choices_.Of(4) == 0 ? choices_.Number() : choices_.Of(2);
    header.bytes = choices_.Of(16) == 0 ? choices_.Number() : choices_.Of(5) * 4;
    header.total = header.bytes;
    if (header.kind == CallFrameKind::kChunk && IsSource(header, header.place) && header.bytes <= 64) {
      frame.payload = ByteChain::FromString(std::string(header.bytes, static_cast<char>(choices_.Byte())));
    }
    frame.text = choices_.Of(4) == 0 ? choices_.Bytes(8) : "call";
    return frame;
  }

  // No frame, or one of which some bytes are others.
  void SendBytes() {
    std::string bytes = choices_.Yes() ? choices_.Bytes(200) : EncodeCallFrame(AnyFrame()).ToString();
    for (uint32_t i = choices_.Of(4); i > 0 && !bytes.empty(); --i) {
      bytes[choices_.Of(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(choices_.Byte());
    }
    const absl::StatusOr<CallFrame> frame = DecodeCallFrame(ByteChain::FromString(bytes));
    if (frame.ok()) Send(AnyDesk(), Stranger(), *frame).IgnoreError();
  }

  Choices choices_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  CallDesk head_, other_;
  uint64_t strangers_[kStrangers] = {};  // Their streams.
  std::set<uint64_t> ended_;
  std::map<uint64_t, SetEpoch> epochs_;  // What members were told last, by stream.
  std::set<uint64_t> honest_;            // Streams of members that are there.
  std::map<std::pair<CallDesk*, Key>, Sent> sent_;
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>>
      entered_;  // Streams, sets and epochs, at the other server.
  uint64_t last_stream_ = 2, last_set_ = 0, sequence_ = 0;
  size_t results_ = 0;
};

}  // namespace
}  // namespace recon

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  recon::InitLog("off");
  google::protobuf::SetLogHandler(nullptr);  // It says of each message that it is not UTF-8.
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  recon::Program(data, size).Run();
  return 0;
}
