#pragma once

#include <memory>
#include <vector>

#include "tests/server/data_plane/push_frames.h"
#include "tests/server/durability/sample_state.h"

namespace recon {

inline constexpr int kAsp = StalenessGate::kUnlimited;
inline constexpr size_t kSampleParams = 250 * 250 + 30;

// SampleModel(), of two shards and all zeros, and workers 1 to `workers`.
struct SmallJob : ParamServerHarness {
  explicit SmallJob(int bound, int workers = 2) : ParamServerHarness(bound) {
    Define(SampleModel(), std::vector<float>(kSampleParams, 0));
    for (int i = 1; i <= workers; ++i) Join(static_cast<uint32_t>(i));
  }
  // One shard's part of a push that has `parts` of the two.
  Frame PartOf(uint32_t worker, uint64_t step, uint32_t shard, float value, uint32_t parts) {
    Frame frame = PushFrame(worker, step, value);
    frame.parts = {frame.parts[shard]};
    frame.payloads = {frame.payloads[shard]};
    frame.header.push_parts = parts;
    if (parts == 1) frame.header.server_parts = 1;
    return frame;
  }
  // After everything the lanes were given.
  void Settle() { Values(1); }
};

inline bool Done(const std::shared_ptr<ParamServerHarness::Pending>& pending) {
  return pending->done.HasBeenNotified();
}

inline absl::Status Await(const std::shared_ptr<ParamServerHarness::Pending>& pending) {
  pending->done.WaitForNotification();
  return pending->reply.status();
}

}  // namespace recon
