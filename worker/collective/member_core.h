#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/call_frame.h"
#include "proto/collective.pb.h"
#include "worker/collective/call.h"

namespace recon {

// One member of a set, without threads or connections: which frames it sends, and what comes of its calls.
//
// Calls of a channel begin in the order in which they were submitted, and their chunks go out as far as the
// window lets them. Those that match by name (CallSpec::by_name) share one window, of which each channel may
// have a chunk at any time: members that make them in other orders would wait for each other for ever. Of a
// name one call is under way at a time, so that a channel is forgotten when its call has ended well. A call
// is done when every chunk that was sent has its outcome: with what failed first, or well. When the set's
// epoch changes, nothing more is sent until the outcomes of all that was sent are here; servers decide each
// chunk once, so all members agree which calls were done in the old epoch. Those that were not are begun
// again in the new one, where the caller wants that and the call can; else they fail.
//
// Pure; one thread at a time. `done` callbacks are handed out, not called.
class MemberCore {
 public:
  struct Options {
    std::string set, member;
    bool shrink = false;
  };
  using Done = std::function<void(const absl::Status&, uint32_t members)>;
  struct Out {
    size_t server;  // 0: the head.
    CallFrame frame;
  };
  struct Finished {
    Done done;
    absl::Status status;
    uint32_t members;  // Those who count in the result.
  };

  explicit MemberCore(Options options) : options_(std::move(options)) {}

  // FailedPrecondition, naming who came and went, if the set has changed since the caller last knew
  // (Acknowledge()); InvalidArgument for a call that cannot be, and for a second one of a name under way;
  // ResourceExhausted for too many. A call of a set that has no members yet waits for them.
  absl::Status Submit(const CallSpec& spec, Done done);
  // The caller knows the epoch and who is in it; none if there is none yet.
  const SetEpoch* Acknowledge();
  const SetEpoch* epoch() const { return epoch_ ? &*epoch_ : nullptr; }
  // The set is another one than the caller knows.
  bool changed() const { return !unknown_.empty(); }
  // Ranks that have gone from the epoch that the caller knows, in the order in which this was heard.
  std::vector<uint32_t> lost() const;

  void OnFrame(size_t server, const CallFrame& frame);
  // No stream is left: all calls fail, and later ones.
  void OnBroken(const absl::Status& why);

  std::vector<Out> TakeOutgoing() { return std::exchange(outgoing_, {}); }
  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }
  // All servers that Out::server may name: host:port, the head's empty. Grows only.
  const std::vector<std::string>& servers() const { return servers_; }
  size_t calls() const { return calls_.size(); }
  // What the oldest call is, for a caller that waits no longer.
  std::string OldestCall() const;

 private:
  struct Call {
    CallSpec spec;
    Done done;
    CallPlan plan;
    uint64_t sequence = 0;
    bool begun = false;      // It has a sequence.
    size_t segment = 0;      // Of the next chunk,
    uint64_t piece = 0;      // and which of the segment's.
    uint64_t under_way = 0;  // Chunks without outcome.
    bool all_sent = false;
    bool put_off = false;  // It has failed for a loss, and waits for the epoch without who is lost.
    absl::Status failed;
    uint32_t lost = kNobody;
    std::vector<uint8_t> kept;  // The input, where the result is written over it.
  };
  struct Channel {
    bool by_name = false;
    uint64_t next_sequence = 0;
    size_t bytes_under_way = 0;
    std::list<uint64_t> unsent;                // Calls with chunks to send, in order.
    std::map<uint64_t, uint64_t> by_sequence;  // Calls that have begun.
  };

  void OnEpoch(const CallFrame& frame);
  void OnLost(const CallFrame& frame);
  void OnOutcome(size_t server, const CallFrame& frame);
  void NoteLoss(uint64_t epoch, uint32_t rank);
  void TellOthers(const SetEpoch& of, uint32_t lost, const std::string& why);
  absl::Status TakeResult(const Call& call, const CallFrame& frame);
  void FailCall(uint64_t id, Call* call, const absl::Status& why, uint32_t lost,
                std::optional<size_t> told_by);
  void EndIfDone(uint64_t id);
  void End(uint64_t id, const absl::Status& status);
  absl::Status CheckName(const CallSpec& spec) const;
  void LeaveChannel(uint64_t id, const Call& call, bool well);
  bool IsFull(const Channel& channel) const;
  // A call that is planned goes into its channel, in the epoch that there is.
  void Begin(uint64_t id, Call* call);
  void BeginNextEpochIfQuiet();
  void UseServers();
  // Into what is outgoing; behind the ticket and what is lost, where it is the first to that server in
  // epoch_.
  void Send(size_t server, CallFrame frame);
  void Pump();
  void SendNext(Channel* channel, Call* call);
  // To the chunk that is sent next, the same at all members; false after the last one.
  static bool StepOn(const CallPlan& plan, size_t* segment, uint64_t* piece);
  size_t Window() const;
  std::string NameOf(uint32_t place) const;
  std::string Described(const Call& call) const;

  const Options options_;
  std::optional<SetEpoch> epoch_;          // In which it speaks.
  std::optional<SetEpoch> next_;           // Which has begun, while outcomes of the one before are missing.
  std::vector<MembersLost> early_losses_;  // From next_.
  std::vector<std::string> servers_{""};
  std::vector<size_t> epoch_servers_;                // Of epoch_, by what ServerOf() says.
  std::string unknown_;                              // Changes that the caller has not acknowledged.
  std::vector<std::pair<uint64_t, uint32_t>> lost_;  // Epoch and rank, since the caller's epoch.
  std::string last_change_;
  absl::Status broken_;
  uint64_t last_call_ = 0;
  std::map<uint64_t, Call> calls_;
  std::map<uint64_t, Channel> channels_;
  std::set<uint64_t> sending_;                     // Those of channels_ that may have something unsent.
  size_t named_bytes_under_way_ = 0;               // Of all channels by name.
  std::set<std::string> names_;                    // Of calls that have channels of their names.
  std::set<std::pair<size_t, uint64_t>> entered_;  // Servers that have its ticket, and of which epoch.
  std::vector<CallFrame> gone_;                    // Losses of epoch_, for servers that it enters later.
  std::vector<Out> outgoing_;
  std::vector<Finished> finished_;
};

}  // namespace recon
