#pragma once

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/rpc/worker_calls.h"

namespace recon {

// A head in memory, which answers as the test says and keeps what it was asked. Thread-safe.
class FakeHead : public WorkerCalls {
 public:
  template <typename Request, typename Reply>
  class Answers {
   public:
    // Answers the next request that has no answer yet.
    void Next(absl::StatusOr<Reply> answer) {
      MutexLock lock(&mu_);
      next_.push_back(std::move(answer));
    }
    // Answers what Next() says nothing of.
    void Otherwise(absl::StatusOr<Reply> answer) {
      MutexLock lock(&mu_);
      otherwise_ = std::move(answer);
    }
    std::vector<Request> asked() {
      MutexLock lock(&mu_);
      return asked_;
    }
    // Waits until `count` requests more have come, and returns the newest; fails the test after half a
    // minute.
    Request AwaitMore(size_t count) {
      MutexLock lock(&mu_);
      const size_t until = asked_.size() + count;
      REQUIRE(mu_.AwaitFor(absl::Seconds(30), [&] { return asked_.size() >= until; }));
      return asked_.back();
    }
    absl::StatusOr<Reply> Ask(const Request& request) {
      MutexLock lock(&mu_);
      asked_.push_back(request);
      if (next_.empty()) return otherwise_;
      absl::StatusOr<Reply> answer = std::move(next_.front());
      next_.pop_front();
      return answer;
    }

   private:
    Mutex mu_;
    std::deque<absl::StatusOr<Reply>> next_ ABSL_GUARDED_BY(mu_);
    absl::StatusOr<Reply> otherwise_ ABSL_GUARDED_BY(mu_) = Reply();
    std::vector<Request> asked_ ABSL_GUARDED_BY(mu_);
  };

  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request) override {
    return registrations.Ask(request);
  }
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatRequest& request) override {
    return heartbeats.Ask(request);
  }
  absl::StatusOr<AcquireReply> Acquire(const AcquireRequest& request) override {
    return acquisitions.Ask(request);
  }
  absl::StatusOr<CompleteReply> Complete(const CompleteRequest& request) override {
    return completions.Ask(request);
  }
  absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request) override { return rejoins.Ask(request); }
  absl::StatusOr<LeaveReply> Leave(const LeaveRequest& request) override { return leaves.Ask(request); }

  Answers<RegisterRequest, RegisterReply> registrations;
  Answers<HeartbeatRequest, HeartbeatReply> heartbeats;
  Answers<AcquireRequest, AcquireReply> acquisitions;
  Answers<CompleteRequest, CompleteReply> completions;
  Answers<RejoinRequest, RejoinReply> rejoins;
  Answers<LeaveRequest, LeaveReply> leaves;
};

}  // namespace recon
