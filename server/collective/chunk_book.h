#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/collective/call_frame.h"

namespace recon {

// The chunks of collective calls that one server decides. A chunk is decided when the frames of all who take
// part in it are there, or when somebody who takes part is lost before its frame came, or when the call has
// failed. It is decided once; all who have sent a frame of it get that outcome, and so do those who send
// theirs later. What a set and its epochs are this book learns from the frames: the head's SetBook decides
// it.
//
// Pure; one thread at a time. Streams are named by their owner's numbers.
class ChunkBook {
 public:
  // A chunk whose frames are all there: contributions by place, streams by place (0: takes no part).
  struct Ready {
    CallHeader chunk;
    std::vector<ByteChain> contributions;
    std::vector<uint64_t> streams;
    absl::Time since;  // Its first frame is here.
  };
  struct Outcome {
    uint64_t stream;
    CallFrame frame;
  };
  struct Decided {
    std::vector<Ready> ready;
    std::vector<Outcome> failed;
  };
  // Of a call that waits.
  struct Waiting {
    std::string what;
    uint64_t set = 0, epoch = 0, sequence = 0;
    absl::Time since;
    std::vector<uint32_t> here, missing;  // Places.
  };

  // Epochs in which a stream speaks, and which are not over.
  static constexpr size_t kEpochsOfStreamMax = 256;

  // A stream speaks for a place of an epoch (`frame` says which) until it ends or sends a chunk of a later
  // one. Errors as Add()'s.
  absl::Status Enter(uint64_t stream, const CallHeader& frame);
  // Whether it has entered the epoch of `frame`.
  bool SpeaksIn(uint64_t stream, const CallHeader& frame) const;
  // A member's frame of a chunk. An error is the sender's fault, and its stream is to be ended:
  // InvalidArgument, or ResourceExhausted at a limit.
  absl::Status Add(uint64_t stream, CallFrame frame, absl::Time now, Decided* decided);
  // A call fails, here too; its chunk frames that come later get `why`.
  absl::Status FailCall(uint64_t stream, const CallHeader& call, const absl::Status& why, Decided* decided);
  // A place is lost from an epoch that somebody has entered, or kEverybody.
  void Lose(uint64_t set, uint64_t epoch, uint32_t place, const std::string& why, Decided* decided);
  // A stream has ended: whose place it was is lost from the epochs in which it spoke.
  void End(uint64_t stream, const std::string& why, Decided* decided);

  // What frames that wait take: their bytes and texts, and what remembering them costs.
  uint64_t bytes() const { return bytes_; }
  // Of all epochs, the longest first.
  std::vector<Waiting> waiting() const;

 private:
  using EpochKey = std::pair<uint64_t, uint64_t>;             // Set, epoch.
  using CallKey = std::pair<uint64_t, uint64_t>;              // Channel, sequence.
  using ChunkKey = std::tuple<uint64_t, uint64_t, uint64_t>;  // And chunk.
  struct Pending {
    CallHeader header;  // Of who came first.
    std::string text;
    absl::Time since;
    std::map<uint32_t, std::pair<uint64_t, ByteChain>> frames;  // By place: its stream and bytes.
  };
  struct Epoch {
    uint32_t members = 0;
    std::map<uint64_t, uint32_t> streams;  // And their places.
    std::map<ChunkKey, Pending> chunks;
    std::map<CallKey, std::pair<absl::Status, uint32_t>> failed;  // And whose loss it was.
    std::map<uint32_t, std::string> lost;                         // Places, kEverybody among them.
  };

  static uint64_t Charge(const Pending& pending, const ByteChain& payload);
  absl::StatusOr<Epoch*> Speak(uint64_t stream, const CallHeader& frame);
  // Those of the stream's epochs that are over.
  void ForgetOver(uint64_t stream, absl::FunctionRef<bool(const EpochKey&)> which);
  std::optional<std::pair<absl::Status, uint32_t>> WhyNot(const Epoch& epoch, const CallHeader& chunk,
                                                          const Pending* pending) const;
  void Fail(Epoch* epoch, const CallKey& call, const absl::Status& why, uint32_t lost, Decided* decided);
  void FailHopeless(Epoch* epoch, Decided* decided);
  void FinishIfAllHere(Epoch* epoch, const ChunkKey& key, Decided* decided);

  std::map<EpochKey, Epoch> epochs_;
  std::map<uint64_t, std::set<EpochKey>> spoken_;  // By stream.
  uint64_t bytes_ = 0;
};

}  // namespace recon
