#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/tensor/param_layout.h"
#include "proto/control.pb.h"

namespace recon {

// Building frames that cover all shards of a model, each frame of about limits::kFrameTargetBytes.

// One shard's encoded values, or none for a pull.
struct EncodedShard {
  CodecId codec = CodecId::kFp32;
  ByteChain payload;
  uint64_t version = kNoVersion;
};

// `header` is copied into each frame; who is speaking is filled in from `identity`. `shards` has one element
// for each shard of the layout.
std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards);

// Encodes flat values shard by shard into one buffer.
EncodeStats EncodeShards(const ParamLayout& layout, CodecId codec, const float* values,
                         std::vector<EncodedShard>* shards);

}  // namespace recon
