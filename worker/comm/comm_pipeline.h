#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/metrics/metrics.h"
#include "common/tensor/param_layout.h"
#include "worker/comm/param_client.h"
#include "worker/comm/replica.h"
#include "worker/comm/session.h"
#include "worker/encode/codec_policy.h"
#include "worker/encode/gradient_encoder.h"
#include "worker/encode/gradient_progress.h"
#include "worker/encode/gradient_space.h"

namespace recon {

// Encodes, pushes and receives while the next step is computed: a bounded number of pushes is under way, each
// on a thread of its own that tries until the push is acknowledged or known to be dropped. A push whose step
// was closed without it is sent again in a later one, if the worker still holds its data's lease; one that is
// dropped takes with it what it carried of the residual.
//
// Threads: Submit(), WaitUntilBelow() and TakeReplies() on the training thread; callbacks of a push run on
// its thread. Ownership: the pointers must outlive the pipeline.
// Shutdown: the destructor waits for the pushes under way; Session::Fail() makes them end early.
class CommPipeline {
 public:
  struct Push {
    uint64_t step = 0;
    uint64_t order_key = 0;
    uint32_t samples = 0;
    uint32_t weight = 0;  // In the step's mean over workers; 0: `samples`.
    std::unique_ptr<GradientBuffer> gradient;
    // Where the gradient is still being computed: its shards are encoded and sent as they come. The plan has
    // all of them then. Null: it is there.
    std::shared_ptr<GradientProgress> progress;
    EncodePlan plan;
    // Versions of the shards the gradient was computed from, and the cluster epoch that counted them.
    std::vector<uint64_t> base_versions;
    uint64_t base_epoch = 0;
    // Of each shard, how many samples its gradient is the mean of, or their weights; empty: as all.
    std::vector<uint32_t> shard_samples;
    // Of each group of the layout, the learning rate its update goes by; empty: the server's.
    std::vector<double> learning_rates;
    // How far parameters of the worker's own have moved, not a gradient: what the server makes of one would
    // be nonsense with the other.
    bool local = false;
    // JobConfig.history of the parameters it was computed from.
    uint64_t history = 0;
    absl::Duration encode_time;  // Filled in by the pipeline.
    // Whether what it was computed from is somebody else's by now; empty: it is not. The push's thread.
    std::function<bool()> counts_no_more;
    // Called once: whether the push was applied (true) or dropped, because its step was closed or the job's
    // policy is another.
    std::function<void(bool applied)> done;
  };

  // `depth` pushes are under way at most.
  CommPipeline(int depth, const ParamLayout* layout, GradientSpace* space, CodecPolicy* policy,
               ParamClient* client, Session* session, Metrics* metrics);
  ~CommPipeline();

  // What pushes are encoded with from now on; before the first, and while none is under way.
  void SetEncoder(std::unique_ptr<GradientEncoder> encoder);

  // A gradient buffer, used again when its push is encoded.
  absl::StatusOr<std::unique_ptr<GradientBuffer>> TakeBuffer();
  // Without a push.
  void ReturnBuffer(std::unique_ptr<GradientBuffer> buffer);
  void Submit(Push push);
  // Waits until fewer than `pushes` are under way. A session that fails ends those.
  void WaitUntilBelow(int pushes);
  // The same, but returns false as soon as there are replies to be taken meanwhile.
  bool WaitUntilBelowOrReplies(int pushes);
  // Replies that came since the last call, oldest first.
  std::vector<Frame> TakeReplies();
  // The step of the push that was decided last had been closed without it.
  bool last_was_late() const { return last_was_late_.load(std::memory_order_relaxed); }

  // What a puller has already, by one of both, or by none.
  struct Known {
    // Of each shard the version, of a server of that cluster epoch: while it is the same, only what has
    // changed since is sent.
    std::vector<uint64_t> versions;
    uint64_t cluster_epoch = 0;
    // Of each shard its pages' hashes (Replica::HashShard()): only pages that differ are sent.
    std::vector<Replica::Values> hashes;
  };
  // Pulls all shards, trying until it succeeds or the session fails. Blocks.
  absl::StatusOr<std::vector<Frame>> PullAll(const Known& known);
  // Asks for the mean of a step, of all shards that pushes have. Blocks.
  absl::StatusOr<std::vector<Frame>> PullMean(uint64_t step);
  // Sends the values of the group `state` as the state before `step`, for the upload of that number; others
  // of `values` are not looked at. Blocks. Any thread. FailedPrecondition if it is not asked for, or no
  // longer.
  absl::Status SendState(std::vector<float> values, uint64_t step, uint64_t upload);
  // Sends initial values. Blocks. FailedPrecondition if another worker was asked meanwhile.
  absl::Status SendInitialValues(std::vector<float> values);

 private:
  void Run();
  // A push, encoded, and what of it is sent already: all, by an exchange in this standing, or nothing.
  struct Outgoing {
    Push push;
    absl::StatusOr<EncodedPush> encoded = EncodedPush();
    Session::Standing standing;
    std::optional<ParamClient::Exchange> exchange;
    bool abandoned = false;  // By whoever computed the gradient, who knows why.
  };

  // The next push of the queue; false when there will be none.
  bool TakeEncoded(Outgoing* out);
  absl::StatusOr<EncodedPush> EncodeAsItComes(GradientEncoder* encoder, Outgoing* out);
  absl::StatusOr<bool> PushUntilDone(Outgoing* out);
  // Gives a push whose step was closed without any of it a later one; false if it is to be dropped.
  bool MoveToLaterStep(const std::vector<absl::StatusOr<Frame>>& results, Push* push);
  // Whether a push is of the state and the policy that the job has now.
  bool StillWanted(const Push& push) const;
  // Counts the values that the encoder cut or made 0, and says once whose they are, if they are many.
  void NoteLost(const EncodedPush& encoded);
  // Counts a push that is dropped, and says why.
  void NoteDropped(const Push& push, absl::string_view why);
  // Waits for the replies, but not once the session has failed: nobody cuts what was sent after its
  // connections were.
  std::vector<absl::StatusOr<Frame>> AwaitReplies(ParamClient::Exchange* exchange, absl::Duration deadline);
  std::vector<absl::StatusOr<Frame>> CallAll(FrameKind kind, const FrameHeader& header,
                                             const WorkerIdentity& identity,
                                             const std::vector<EncodedShard>& shards);
  FrameHeader HeaderOf(const Push& push, double gradient_norm) const;
  // Writes beside each shard what its part of a frame says of it.
  void Label(const Push& push, const Session::Standing& standing, std::vector<EncodedShard>* shards) const;

  // Set in the constructor.
  const ParamLayout* const layout_;
  GradientSpace* const space_;
  CodecPolicy* const policy_;
  ParamClient* const client_;
  Session* const session_;
  prometheus::Counter& bytes_;
  prometheus::Counter& resent_;
  prometheus::Counter& dropped_;
  prometheus::Counter& late_;
  prometheus::Counter& saturated_;
  prometheus::Counter& underflown_;
  prometheus::Counter& flushes_;
  prometheus::Gauge& bytes_per_parameter_;
  prometheus::Gauge& residual_;
  prometheus::Histogram& seconds_;
  prometheus::Histogram& encode_seconds_;
  const std::function<void(Frame)> keep_reply_;

  std::atomic<bool> last_was_late_{false};
  std::atomic<bool> said_what_is_lost_{false};

  // Held by the one thread that encodes: pushes are encoded in order.
  Mutex encoding_ ABSL_ACQUIRED_BEFORE(mu_);

  Mutex mu_;
  std::unique_ptr<GradientEncoder> encoder_ ABSL_GUARDED_BY(mu_);  // Stays while a push is under way.
  std::deque<Push> queue_ ABSL_GUARDED_BY(mu_);
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;  // Queued ones included.
  std::vector<Frame> replies_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<GradientBuffer>> buffers_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace recon
