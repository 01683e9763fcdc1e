#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace recon {

// A connection that a server has accepted, as those see it who answer what comes over it. Thread-safe.
class Connection {
 public:
  // Something that came over it made sense and was taken.
  void NoteUnderstood() { understood_.fetch_add(1, std::memory_order_relaxed); }
  // Its other end has shown that it belongs to the job.
  void NoteMember() {
    member_.store(true, std::memory_order_relaxed);
    NoteUnderstood();
  }

  // A call over it begins; it has ended, with its reply.
  void NoteCallBegun() { calls_.fetch_add(1, std::memory_order_relaxed); }
  void NoteCallEnded() { calls_.fetch_sub(1, std::memory_order_relaxed); }

  uint64_t understood() const { return understood_.load(std::memory_order_relaxed); }
  bool member() const { return member_.load(std::memory_order_relaxed); }
  // Those that are open.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> understood_{0};
  std::atomic<bool> member_{false};
  std::atomic<uint64_t> calls_{0};
};

// The connections of a server, by their other ends. Thread-safe.
class Connections {
 public:
  // `peer`: "10.0.0.2:4711", "[::1]:4711".
  std::shared_ptr<Connection> Add(const std::string& peer);
  // Null if there is none.
  std::shared_ptr<Connection> Find(absl::string_view peer) const;
  // `connection` has ended; another one of that peer stays.
  void Remove(const std::string& peer, const Connection* connection);

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Connection>> by_peer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
