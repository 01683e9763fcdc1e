#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/trace_client.h"
#include "common/trace/recorder.h"

namespace recon {

// The part that a worker, or a server that has joined a head, has in traces: while the head has one recorded,
// this process records, too, and delivers what it has, with readings of both clocks.
//
// Threads: Follow() on one thread. While a trace is recorded there is a thread of its own.
// Shutdown: the destructor delivers what was recorded last, and gives up when the head does not answer for 3
// s.
class TraceReporter {
 public:
  // The head is shown `caller`.
  TraceReporter(const std::shared_ptr<grpc::Channel>& head, const Caller& caller) : client_(head, caller) {}
  ~TraceReporter();
  TraceReporter(const TraceReporter&) = delete;
  TraceReporter& operator=(const TraceReporter&) = delete;

  // What the head says, again and again: the trace that is recorded, and for how long yet; 0: none is.
  // `member` is this process. Never waits.
  void Follow(uint64_t trace, absl::Duration left, const TraceMember& member);

 private:
  void Run(int64_t deadline_ns);
  // Until the deadline or EndNow(); false then.
  bool Pause(int64_t deadline_ns);
  void ReadClocks(int times);
  // What was recorded since, if there is anything; `last`: there will be no more, which is said in any case.
  void Deliver(trace::Recording* recording, bool last);
  void DeliverPiece(TraceDelivery piece);

  // Set in the constructor.
  TraceClient client_;

  // Set before the reporting thread begins.
  uint64_t number_ = 0;  // Of the trace.
  TraceMember member_;

  // The reporting thread's.
  std::vector<ClockSample> clock_;
  uint64_t dropped_ = 0;  // Pieces of theirs did not arrive.
  bool wanted_ = true;

  Mutex mu_;
  uint64_t trace_ ABSL_GUARDED_BY(mu_) = 0;  // That was followed last.
  bool over_ ABSL_GUARDED_BY(mu_) = true;    // The thread has nothing more to do, or there is none.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // Of Follow() and the destructor.
};

// This process, as a member of a trace.
TraceMember DescribeMember(TraceRole role, const std::string& name, uint32_t number);

}  // namespace recon
