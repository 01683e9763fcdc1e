#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/collective/call_frame.h"
#include "proto/collective.pb.h"
#include "server/collective/chunk_book.h"
#include "server/collective/set_book.h"

namespace recon {

// One server's part in collectives, without threads and connections: what comes of each frame of its streams.
// The head's has the sets, too. Pure; one thread at a time. Streams are named by their owner's numbers.
class CallDesk {
 public:
  struct OtherServer {
    std::string address;     // host:port.
    std::string ticket_key;  // Its own.
  };
  struct Options {
    // Only the head takes members into sets.
    bool head = true;
    SetBook::Options sets;
    // The job's other servers; null: there are none.
    std::function<std::vector<OtherServer>()> other_servers;
    // Of a server that is not the head: members have tickets that are made with it.
    std::string ticket_key;
  };
  // To be sent, in this order; then what is ready is to be combined and answered (AnswersOf()).
  struct Answers {
    std::vector<ChunkBook::Outcome> frames;
    std::vector<ChunkBook::Ready> ready;
    std::vector<std::pair<uint64_t, absl::Status>> sent_away;  // Streams that are to end.
    bool is_member = false;  // Whether the frame was taken as one of a member of a set.
  };

  explicit CallDesk(Options options) : options_(std::move(options)), sets_(options_.sets) {}

  // A member's frame. An error is its sender's fault, and its stream is to be ended.
  absl::Status Handle(uint64_t stream, CallFrame frame, absl::Time now, Answers* answers);
  // A stream has ended.
  void Ended(uint64_t stream, const std::string& why, Answers* answers);
  // Members that have been silent for too long are lost. Call it several times a second while has_members():
  // where the calls are further apart, this process itself stood still, and cannot say who else did.
  void EvictSilent(absl::Time now, Answers* answers);
  bool has_members() const { return !sets_.empty(); }
  SetsReply Sets(absl::Time now) const;

 private:
  absl::Status Join(uint64_t stream, const CallFrame& frame, absl::Time now, SetBook::Changes* changes);
  absl::Status Enter(uint64_t stream, const CallFrame& frame);
  void Apply(SetBook::Changes* changes, ChunkBook::Decided* decided, Answers* answers);

  const Options options_;
  SetBook sets_;
  ChunkBook chunks_;
  absl::Time looked_ = absl::InfinitePast();
};

// The outcomes of a chunk whose frames are all there, with its result. Pure, thread-safe.
std::vector<ChunkBook::Outcome> AnswersOf(const ChunkBook::Ready& ready);

}  // namespace recon
