#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/alarm.h"
#include "common/base/mutex.h"
#include "common/rpc/credentials.h"
#include "common/rpc/own_token.h"
#include "grpcpp/channel.h"
#include "worker/collective/member_core.h"

namespace recon {

// A call under way. Thread-safe.
class PendingCollective {
 public:
  // Waits for at most `timeout`; whether it is done.
  bool AwaitFor(absl::Duration timeout);
  bool done();
  // When it is done.
  absl::Status status();
  // Those who count in the result.
  uint32_t members();

 private:
  friend class Group;
  void Finish(const absl::Status& status, uint32_t members);

  Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  uint32_t members_ ABSL_GUARDED_BY(mu_) = 0;
};

// This process as a member of one set: connections of its own to the head and the job's other servers, so
// that sets do not wait for each other.
//
// Threads: thread-safe; calls come from any thread and begin in the order in which they are started. What a
// call reads and writes stays in use until it is done. A connection that breaks ends the membership: all
// calls fail with Unavailable, and the process joins anew if it wants to. Shutdown: the destructor leaves the
// set, which ends calls under way, and waits for the connections' end.
class Group {
 public:
  struct Options {
    std::string server;  // host:port of the head.
    TlsFlags tls;
    std::string set, member;
    bool elastic = false;
    uint32_t rank = 0, size = 1;  // Of an elastic set: the least size.
    bool shrink = false;
    absl::Duration patience;  // Zero: as the server has it.
  };
  // Begins to connect. InvalidArgument for a malformed address or bad TLS flags.
  static absl::StatusOr<std::unique_ptr<Group>> Join(const Options& options);
  ~Group();

  // Waits for the first epoch; whether there is one, or it has failed.
  bool AwaitBegunFor(absl::Duration timeout);
  // OK, or why the membership has ended.
  absl::Status status();
  // Who is in the set; from then on calls are of that epoch. Unavailable before the first one.
  absl::StatusOr<SetEpoch> Acknowledge();
  // The same without consequences.
  std::optional<SetEpoch> epoch();
  bool changed();
  // Ranks that have gone from the epoch that was acknowledged last.
  std::vector<uint32_t> lost();

  // Errors as MemberCore::Submit()'s.
  absl::StatusOr<std::shared_ptr<PendingCollective>> Start(const CallSpec& spec);

  // Leaves, and others are told why: calls under way end with Cancelled, soon.
  void Leave(const std::string& why);
  // What the head knows of its sets. Waits for up to two seconds.
  absl::StatusOr<SetsReply> Sets();
  // Whom the calls wait for that have waited longest, as a sentence; also before the first epoch. Asks the
  // head.
  std::string WhoIsMissing();

 private:
  class Stream;
  explicit Group(const Options& options);

  void OnFrame(size_t server, const CallFrame& frame);
  void OnStreamEnded(Stream* stream, const std::string& address, const absl::Status& why);
  void EndStream(const std::string& address, const absl::Status& why);
  // What comes of the stream to the head that was denied, if there is one: the same with another token.
  void LookForToken();
  void OpenStream(size_t server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what the core has for the servers; what has finished is for the caller, without the lock.
  std::vector<MemberCore::Finished> Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Beat();

  const Options options_;
  std::unique_ptr<Introduction> introduction_;  // Shown to each server. Set by Join().
  std::shared_ptr<grpc::Channel> head_;

  Mutex mu_;
  MemberCore core_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);  // By server.
  size_t open_streams_ ABSL_GUARDED_BY(mu_) = 0;                       // That may refer to callers' memory.
  size_t live_streams_ ABSL_GUARDED_BY(mu_) = 0;                       // That gRPC knows.
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  CallFrame join_ ABSL_GUARDED_BY(mu_);
  Stream* denied_ ABSL_GUARDED_BY(mu_) = nullptr;  // Has ended; the heart's thread looks for a token.
  absl::Status why_denied_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Stream> retired_;  // In whose place there is another; the heart's thread.

  std::unique_ptr<Alarm> heart_;
};

}  // namespace recon
