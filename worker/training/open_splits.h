#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "worker/comm/session.h"

namespace recon {

// A split of a lease between its first batch and the acknowledgement of its last push.
//
// Threads: EndPush() and dropped() on any, all else on the training thread.
class OpenSplit {
 public:
  // `number` counts the lease's splits, from 0.
  OpenSplit(Session::HeldLeasePtr lease, uint32_t number) : lease_(std::move(lease)), number_(number) {}

  const Session::HeldLeasePtr& lease() const { return lease_; }
  uint32_t number() const { return number_; }

  // A push has some of its samples.
  void BeginPush();
  // One of those has ended, with an acknowledgement (`applied`) or without: then others compute the split
  // again.
  void EndPush(bool applied);
  // What was computed of it does not count: others compute it again.
  void Drop() { dropped_ = true; }
  bool dropped() const { return dropped_; }
  // A push of it has begun.
  bool pushed() const { return pushed_; }
  // No batch of it comes any more. Once.
  void Close();
  // It is closed, and all its pushes have ended.
  bool finished() const { return closed_ && pushes_open_ == 0; }

 private:
  const Session::HeldLeasePtr lease_;
  const uint32_t number_;
  bool closed_ = false;
  bool pushed_ = false;
  std::atomic<int> pushes_open_{0};
  std::atomic<bool> dropped_{false};
};
using OpenSplitPtr = std::shared_ptr<OpenSplit>;

// A worker's open splits, in the order in which they were opened: that of their leases. They are completed in
// this order, whichever is acknowledged first.
//
// Threads: the training thread. Ownership: those with pushes under way share in a split.
class OpenSplits {
 public:
  OpenSplitPtr Open(const Session::HeldLeasePtr& lease, uint32_t number);
  // No more are to be opened before one is taken: limits::kOpenSplitsMax.
  bool full() const;
  // The oldest, if it is finished, which is open no more; else null.
  OpenSplitPtr TakeFinished();
  bool any_finished() const { return !splits_.empty() && splits_.front()->finished(); }
  // Drops all that are open.
  void DropAll();

 private:
  std::list<OpenSplitPtr> splits_;
};

}  // namespace recon
