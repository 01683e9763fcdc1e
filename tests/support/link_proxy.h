#pragma once

#include <sys/types.h>

#include <atomic>
#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace recon {

// A link that can be cut: TCP connections to it go on to a target, until it is cut; then nothing moves, and
// neither end is told, until it is mended. Thread-safe; bytes move on a thread of its own.
class LinkProxy {
 public:
  explicit LinkProxy(std::string target);
  ~LinkProxy();
  LinkProxy(const LinkProxy&) = delete;
  LinkProxy& operator=(const LinkProxy&) = delete;

  // "127.0.0.1:port", always the same.
  const std::string& address() const { return address_; }
  // For connections to come.
  void SetTarget(const std::string& target) {
    MutexLock lock(&mu_);
    target_ = target;
  }
  void SetCut(bool cut) { cut_ = cut; }

 private:
  // One direction of a connection.
  struct Pipe {
    int from = -1, to = -1;
    std::string waiting;
    bool ended = false;      // The near end has said its last.
    bool passed_on = false;  // And the other knows.
  };
  struct Connection {
    int near = -1, far = -1;
    Pipe up, down;
  };

  void Run();
  void Accept();
  static bool Move(Pipe* pipe, bool readable);

  std::string address_;
  int listener_ = -1;
  std::atomic<bool> cut_{false};
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  std::string target_ ABSL_GUARDED_BY(mu_);
  std::list<Connection> connections_;  // The thread's.
  std::thread thread_;
};

}  // namespace recon
