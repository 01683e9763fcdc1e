#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/alarm.h"
#include "common/base/lane_pool.h"
#include "common/base/mutex.h"
#include "proto/collective.grpc.pb.h"
#include "server/collective/call_desk.h"
#include "server/rpc/access.h"

namespace recon {

// Collectives over gRPC's callback API with raw buffers: a stream of each member. The head's says who is in a
// set; every server's decides the chunks that it is sent.
//
// Threads: thread-safe. Results of some size are computed on a pool of its own, which is made with the first
// stream: who uses no collectives pays nothing. Shutdown: Close(), then shut the RPC server down, then
// destroy.
class CollectiveService final : public Collective::WithRawCallbackMethod_Exchange<
                                    Collective::WithCallbackMethod_Sets<Collective::Service>> {
 public:
  struct Options {
    // Only the head takes members into sets.
    bool head = true;
    // Of members that do not say how long.
    absl::Duration patience = absl::Seconds(3);
    // The job's other servers. Any thread; null: there are none.
    std::function<std::vector<CallDesk::OtherServer>()> other_servers;
    // Of a server that is not the head.
    std::string ticket_key;
    // Who may have streams, and who is told which connections are members'; null: everybody, and nobody. They
    // outlive the service.
    Access* access = nullptr;
    const Connections* connections = nullptr;
  };
  explicit CollectiveService(const Options& options);
  ~CollectiveService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Sets(grpc::CallbackServerContext* context, const SetsRequest* request,
                                 SetsReply* reply) override;

  // Ends all streams and refuses new ones: Unavailable.
  void Close();

 private:
  class Stream;

  // gRPC's threads. Whether the frame has shown that its sender is a member; a bad status ends the stream.
  absl::StatusOr<bool> Handle(uint64_t stream, const grpc::CallbackServerContext& context, CallFrame frame);
  void Ended(uint64_t stream, const std::string& why);
  void Forget(uint64_t stream);

  void Send(CallDesk::Answers* answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const ChunkBook::Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Without the lock: results are computed, here or on the pool.
  void AnswerAll(std::vector<ChunkBook::Ready> ready);
  void Answer(const ChunkBook::Ready& ready);
  void EvictSilent();

  // Set in the constructor.
  const bool head_;
  Access* const access_;
  const Connections* const connections_;

  Mutex mu_;
  CallDesk desk_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Stream*> streams_ ABSL_GUARDED_BY(mu_);
  uint64_t last_stream_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  // Made with the first stream, under the lock.
  std::unique_ptr<LanePool> pool_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace recon
