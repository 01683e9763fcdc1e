#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/codec/page_hash.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/param_layout.h"

namespace recon {

// A model of a job's servers: what is pushed is taken from the parameters, of each worker, step and shard
// once; a push that comes again is answered as if it were new. A step that was closed takes nothing more.
// Pushes without an answer are the transport's to make.
//
// Threads: thread-safe.
class SummingServers {
 public:
  // `layout` must outlive it. Parameters begin with 0, and versions, too.
  explicit SummingServers(const ParamLayout* layout)
      : layout_(layout), values_(layout->params()), versions_(layout->shard_count()) {}

  uint64_t cluster_epoch() {
    MutexLock lock(&mu_);
    return cluster_epoch_;
  }
  // They have been started again, and have lost nothing.
  void Restart() {
    MutexLock lock(&mu_);
    ++cluster_epoch_;
  }
  // What the step has by now counts, what comes later does not.
  void CloseStep(uint64_t step) {
    MutexLock lock(&mu_);
    closed_.insert(step);
  }
  // Of no shard anything was taken. Closes it then.
  bool CloseStepIfEmpty(uint64_t step) {
    MutexLock lock(&mu_);
    for (const auto& [taken_step, shard] : taken_) {
      if (taken_step == step) return false;
    }
    closed_.insert(step);
    return true;
  }

  // Minus the sum of what was taken.
  std::vector<float> values() {
    MutexLock lock(&mu_);
    return values_;
  }
  void SetValues(float value) {
    MutexLock lock(&mu_);
    values_.assign(values_.size(), value);
  }
  // Parts of pushes that were taken, or had been before.
  size_t taken() {
    MutexLock lock(&mu_);
    return taken_.size();
  }
  size_t seen_again() {
    MutexLock lock(&mu_);
    return seen_again_;
  }

  absl::StatusOr<Frame> Handle(const Frame& request) {
    MutexLock lock(&mu_);
    if (request.header.cluster_epoch != cluster_epoch_) {
      return absl::FailedPreconditionError(absl::StrCat("cluster epoch ", cluster_epoch_, " is now"));
    }
    const auto kind = static_cast<FrameKind>(request.header.kind);
    const bool pushes = kind == FrameKind::kPushPull;
    if (pushes) {
      for (const PartHeader& part : request.parts) {
        const bool taken = taken_.count({request.header.step, part.shard}) > 0;
        if (!taken && closed_.count(request.header.step) > 0) {
          return absl::AbortedError(absl::StrCat("step ", request.header.step, " is closed"));
        }
      }
    }
    Frame reply;
    reply.header.kind = static_cast<uint8_t>(FrameKind::kReply);
    reply.header.cluster_epoch = cluster_epoch_;
    for (size_t i = 0; i < request.parts.size(); ++i) {
      const PartHeader& part = request.parts[i];
      if (pushes && !taken_.insert({request.header.step, part.shard}).second) {
        ++seen_again_;
      } else if (pushes) {
        Subtract(part, request.payloads[i]);
        ++versions_[part.shard];
      } else if (kind == FrameKind::kInit) {
        std::fill_n(values_.begin() + ShardOf(part).offset, ShardOf(part).size, 0.0f);
        Subtract(part, request.payloads[i]);
        for (float& value : Values(part)) value = -value;
      }
      AddPart(part, request.payloads[i], kind == FrameKind::kPull, &reply);
    }
    return reply;
  }

 private:
  const ShardPlacement& ShardOf(const PartHeader& part) const {
    RECON_CHECK_LT(part.shard, layout_->shard_count());
    return layout_->shards()[part.shard];
  }
  absl::Span<float> Values(const PartHeader& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::MakeSpan(values_).subspan(ShardOf(part).offset, ShardOf(part).size);
  }

  void Subtract(const PartHeader& part, const ByteChain& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto codec = static_cast<CodecId>(part.codec);
    const absl::Span<float> values = Values(part);
    if (IsSparse(codec)) {
      const absl::Status read = ForEachSparsePage(
          codec, part.count, payload,
          [&](const SparsePage& page) {
            RECON_CHECK_EQ(page.page, 0);  // A shard has one page.
            for (size_t i = 0; i < page.values.size(); ++i) {
              values[page.all ? i : page.indices[i]] -= page.values[i];
            }
          },
          part.exponent);
      RECON_CHECK(read.ok());
      return;
    }
    RECON_CHECK(CheckPayload(codec, part.count, payload).ok());
    const std::string bytes = payload.ToString();
    std::vector<float> decoded(part.count);
    Decode(codec, reinterpret_cast<const uint8_t*>(bytes.data()), part.count, decoded.data(), part.exponent);
    for (size_t i = 0; i < values.size(); ++i) values[i] -= decoded[i];
  }

  // Of a shard that the asker has already nothing but its version.
  void AddPart(const PartHeader& asked, const ByteChain& payload, bool pull, Frame* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    PartHeader part;
    part.shard = asked.shard;
    part.count = asked.count;
    part.version = versions_[asked.shard];
    const absl::Span<const float> values = Values(asked);
    const bool same_hashes =
        pull && payload.size() > 0 &&
        payload.ToString() == PageHash(static_cast<CodecId>(asked.codec), values.data(), values.size());
    ByteChain bytes;
    if (asked.version != part.version && !same_hashes) {
      bytes = ByteChain::FromString(
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    }
    reply->parts.push_back(part);
    reply->payloads.push_back(bytes);
  }

  const ParamLayout* const layout_;

  Mutex mu_;
  uint64_t cluster_epoch_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<float> values_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> versions_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<uint64_t, uint32_t>> taken_ ABSL_GUARDED_BY(mu_);  // Step and shard.
  std::set<uint64_t> closed_ ABSL_GUARDED_BY(mu_);
  size_t seen_again_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recon
