#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/byte_chain.h"
#include "common/codec/frame.h"
#include "common/metrics/metrics.h"
#include "server/data_plane/param_server.h"
#include "tests/support/choices.h"

namespace recon {

// A job's parameters in memory under any frames that come over a server's streams: two workers that push as
// workers do, and a stranger, or a third worker that means no good, who sends whatever the choices say, also
// in the names of the others, and bytes that are no frames. Meanwhile workers are parked and come back, a
// quorum is asked for or not, time passes, and cluster epochs begin.
//
// Every request is answered once. What a push has several frames for counts as a whole or not at all. In the
// end both workers' pushes are acknowledged in bounded time, and nothing is held any more. Where there was
// only a stranger, the parameters are what the acknowledged pushes make of them, exactly.
class FrameProgram {
 public:
  FrameProgram(const uint8_t* data, size_t size);
  ~FrameProgram();
  // What was violated first; empty if nothing was.
  std::string Run();
  // How far it got, for a test that wants to know that programs do something.
  struct Counts {
    int acknowledged = 0;  // Pushes of the two workers.
    int moved = 0;         // Those of them that went into a later step than they were made for.
    int refused = 0;       // Requests of the other.
    int taken = 0;
    int epochs = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Sent;
  struct Push {
    uint64_t step = 0;
    uint64_t epoch = 0;  // In which its first frame was sent: the others go by the same.
    float value = 0;
    std::vector<uint32_t> cuts;  // Where its frames begin; the first is 0.
    std::vector<std::shared_ptr<Sent>> sent;
  };
  struct Worker {
    uint32_t number = 0;
    uint64_t next_step = 0;
    bool idle = false;  // Nobody waits for it.
    std::optional<Push> push;
  };

  void Fail(const std::string& what) {
    if (violated_.empty()) violated_ = what;
  }
  void Define();
  void Step();
  void Manage();
  void BeginEpoch();
  void Settle();

  void Act(Worker* worker);
  void Begin(Worker* worker);
  void SendNext(Worker* worker);
  // Looks at the answers if all of them are there.
  void Look(Worker* worker);
  void NoteAcknowledged(Worker* worker);
  void MoveToLaterStep(Worker* worker);
  void SendAnything();

  std::shared_ptr<Sent> Send(const ByteChain& bytes, uint64_t sender);
  Frame HeaderOf(FrameKind kind, uint32_t worker, uint64_t step) const;
  void AddPart(Frame* frame, uint32_t shard, float value) const;
  Frame AnyFrame();
  void FinishPushes();
  void CheckValues();
  void CheckIdle();

  Choices choices_;
  const bool member_;  // Whether the other is a worker.
  const int bound_;
  uint64_t epoch_ = 4;
  Metrics metrics_;
  std::unique_ptr<ParamServer> server_;
  std::vector<Worker> workers_;
  std::vector<std::shared_ptr<Sent>> all_sent_;
  // Of the two workers, by step.
  std::map<uint64_t, std::vector<float>> acknowledged_;
  std::string violated_;
  Counts counts_;
};

}  // namespace recon
