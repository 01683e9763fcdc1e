#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "catch2/catch.hpp"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/codec/frame.h"
#include "common/transport/transport.h"

namespace recon {

// The way to a server in memory: the test says what becomes of each request and of its answer.
//
// Threads: thread-safe. `server` and what Decide() has set run on the thread that calls or answers, without a
// lock. Awaiting fails the test after half a minute, and belongs on its own thread.
class FakeTransport : public Transport {
 public:
  enum class Fate {
    kAnswer,      // The server has it, and its answer comes at once.
    kHold,        // It waits on its way there.
    kHoldAnswer,  // The server has it, and its answer waits on its way back.
    kLose,        // The connection breaks before it is there.
    kLoseAnswer,  // The server has it, and the connection breaks.
  };
  using Server = std::function<absl::StatusOr<Frame>(const Frame& request)>;
  using Decision = std::function<Fate(const Frame& request)>;

  explicit FakeTransport(Server server) : server_(std::move(server)) {}
  ~FakeTransport() override { Disconnect(); }

  // At first every request is answered.
  void Decide(Decision decision) {
    MutexLock lock(&mu_);
    decision_ = std::move(decision);
  }
  void DecideAll(Fate fate) {
    Decide([fate](const Frame&) { return fate; });
  }
  // Answers the next request that has no answer yet with an error, which the server does not see.
  void FailNext(absl::Status error) {
    MutexLock lock(&mu_);
    errors_.push_back(std::move(error));
  }

  // All that have come, in their order, payloads included.
  std::vector<Frame> requests() {
    MutexLock lock(&mu_);
    return requests_;
  }
  std::vector<Frame> AwaitRequests(size_t count) {
    MutexLock lock(&mu_);
    REQUIRE(mu_.AwaitFor(kHangs, [&] { return requests_.size() >= count; }));
    return requests_;
  }
  void AwaitHeld(size_t count) {
    MutexLock lock(&mu_);
    REQUIRE(mu_.AwaitFor(kHangs, [&] { return held_.size() >= count; }));
  }
  // Of those that were held at the same time.
  size_t held_most() {
    MutexLock lock(&mu_);
    return held_most_;
  }
  int disconnects() {
    MutexLock lock(&mu_);
    return disconnects_;
  }

  // Lets one of those that are held go on to its answer; false if none is. `draw` says which, from the oldest
  // on, wrapped.
  bool Answer(uint64_t draw) {
    Held held;
    {
      MutexLock lock(&mu_);
      if (held_.empty()) return false;
      auto chosen = std::next(held_.begin(), static_cast<ptrdiff_t>(draw % held_.size()));
      held = std::move(chosen->second);
      held_.erase(chosen);
    }
    Finish(std::move(held));
    return true;
  }
  void AnswerOldest() { REQUIRE(Answer(0)); }
  void AnswerNewest() {
    size_t held = 0;
    {
      MutexLock lock(&mu_);
      held = held_.size();
    }
    REQUIRE(held > 0);
    REQUIRE(Answer(held - 1));
  }
  // Ends the oldest that is held with an error, which the server does not see.
  void EndOldest(const absl::Status& error) {
    Done done;
    {
      MutexLock lock(&mu_);
      REQUIRE(!held_.empty());
      done = std::move(held_.begin()->second.done);
      held_.erase(held_.begin());
    }
    Refuse(std::move(done), error);
  }
  // From now on nothing is held.
  void AnswerAll() {
    DecideAll(Fate::kAnswer);
    while (Answer(0)) {
    }
  }

  // Waits until something is held, and then a moment for more; false after Release().
  bool AwaitSomeHeld(size_t more, absl::Duration moment) {
    MutexLock lock(&mu_);
    mu_.Await([this] { return released_ || !held_.empty(); });
    (void)mu_.AwaitFor(moment, [&] { return released_ || held_.size() >= more; });
    return !released_;
  }
  void Release() {
    MutexLock lock(&mu_);
    released_ = true;
  }

  uint64_t Call(const ByteChain& request, Done done) override {
    absl::StatusOr<Frame> frame = DecodeFrame(request);
    RECON_CHECK(frame.ok(), "a request is no frame");
    uint64_t number = 0;
    std::optional<absl::Status> error;
    Decision decision;
    {
      MutexLock lock(&mu_);
      number = ++calls_;
      requests_.push_back(*frame);
      decision = decision_;
      if (!errors_.empty()) {
        error = std::move(errors_.front());
        errors_.pop_front();
      }
    }
    const Fate fate = error || !decision ? Fate::kAnswer : decision(*frame);
    Held held;
    held.done = std::move(done);
    if (error) {
      held.answer = *error;
    } else if (fate == Fate::kLose) {
      held.answer = Broken();
    } else if (fate == Fate::kHold) {
      held.request = *std::move(frame);
    } else {
      held.answer = server_(*frame);
      if (fate == Fate::kLoseAnswer) held.answer = Broken();
    }
    if (fate == Fate::kHold || fate == Fate::kHoldAnswer) {
      MutexLock lock(&mu_);
      held_.emplace(number, std::move(held));
      held_most_ = std::max(held_most_, held_.size());
    } else {
      Finish(std::move(held));
    }
    return number;
  }

  void Abandon(uint64_t call, const absl::Status& why) override {
    Done done;
    {
      MutexLock lock(&mu_);
      const auto found = held_.find(call);
      if (found == held_.end()) return;
      done = std::move(found->second.done);
      held_.erase(found);
    }
    Refuse(std::move(done), why);
  }

  void Disconnect() override {
    std::map<uint64_t, Held> ended;
    {
      MutexLock lock(&mu_);
      ++disconnects_;
      ended.swap(held_);
    }
    for (auto& [number, held] : ended) Refuse(std::move(held.done), Broken());
  }

 private:
  static constexpr absl::Duration kHangs = absl::Seconds(30);

  struct Held {
    std::optional<Frame> request;  // The server has not had it.
    absl::StatusOr<Frame> answer = absl::UnknownError("there is no answer yet");
    Done done;
  };

  static absl::Status Broken() { return absl::UnavailableError("the connection broke"); }
  void Finish(Held held) {
    if (held.request) held.answer = server_(*held.request);
    if (!held.answer.ok()) return Refuse(std::move(held.done), held.answer.status());
    held.done(EncodeFrame(*std::move(held.answer)));
  }
  void Refuse(Done done, const absl::Status& error) {
    {
      MutexLock lock(&mu_);
      given_.push_back(error);
    }
    done(error);
  }

  const Server server_;

  Mutex mu_;
  Decision decision_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::Status> errors_ ABSL_GUARDED_BY(mu_);
  std::vector<Frame> requests_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Held> held_ ABSL_GUARDED_BY(mu_);  // By the call's number.
  size_t held_most_ ABSL_GUARDED_BY(mu_) = 0;
  // Errors that others have. Abseil's library is not instrumented: ThreadSanitizer would not see that whoever
  // lets go of one last comes after the others.
  std::vector<absl::Status> given_ ABSL_GUARDED_BY(mu_);
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  int disconnects_ ABSL_GUARDED_BY(mu_) = 0;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
