#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/tensor/param_layout.h"
#include "proto/control.pb.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// Building frames that cover all shards of a model, each frame of about FrameBytesFor(), for
// one of the job's servers.

// `header` is copied into each frame; who is speaking is filled in from `identity`, and how many shards the
// push has from `shards`, where the header does not say: its other shards are in other frames. `shards` has
// one element for each shard of the layout, as has `server_of_shard` (AssignShards()); those that are left
// out have no part in it, and those of different samples no frame in common. Frames come in the order in
// which their last shards do.
std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards,
                             const std::vector<uint32_t>& server_of_shard);
// All on one server.
std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards);

// For frames that go out together and carry so many bytes, there and back: longer than the answerer lets a
// reply wait, and than a slow link takes.
absl::Duration FrameDeadline(uint64_t bytes, absl::Duration wait = limits::kReplyWaitMax);

// Flat values in FP32, shard by shard; the shards share them.
std::vector<EncodedShard> PlainShards(const ParamLayout& layout, std::vector<float> values);

}  // namespace recon
