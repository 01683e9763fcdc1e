#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace recon {

// Whether a server's shards have values, and who of the workers sends those that a new job begins with.
//
// Pure; not thread-safe.
class AwaitedValues {
 public:
  // All shards have values.
  bool complete() const { return complete_; }
  void SetComplete() { complete_ = true; }
  // Whether they are asked of this worker, or were.
  bool AskedOf(WorkerId worker) const { return worker == sender_; }

  // All of `shards` are asked of `worker`, whatever another has sent. False if there is nothing to wait for;
  // else `ready` is what Came() returns at the end.
  bool Ask(WorkerId worker, const std::vector<uint32_t>& shards, std::function<void()> ready) {
    sender_ = worker;
    missing_ = std::set<uint32_t>(shards.begin(), shards.end());
    complete_ = missing_.empty();
    ready_ = complete_ ? nullptr : std::move(ready);
    return !complete_;
  }
  // A worker has sent values of these shards. Not null once, when all that were asked of it are there.
  std::function<void()> Came(WorkerId worker, absl::Span<const uint32_t> shards) {
    for (const uint32_t shard : shards) missing_.erase(shard);
    if (!missing_.empty() || complete_ || !AskedOf(worker)) return nullptr;
    complete_ = true;
    return std::exchange(ready_, nullptr);
  }

 private:
  bool complete_ = false;
  WorkerId sender_;
  std::set<uint32_t> missing_;
  std::function<void()> ready_;
};

}  // namespace recon
