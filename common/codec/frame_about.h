#pragma once

#include "common/codec/frame.h"
#include "common/trace/recorder.h"

namespace recon {

// What the spans of a trace are about that have to do with a frame: the push that it is part of, on both
// sides alike. Nothing, for a frame without a gradient.
inline trace::About AboutFrame(const Frame& frame) {
  const auto kind = static_cast<FrameKind>(frame.header.kind);
  if ((kind != FrameKind::kPush && kind != FrameKind::kPushPull) || frame.parts.empty()) return {};
  return trace::About::Frame(frame.header.worker, frame.header.step, frame.parts.front().shard);
}

}  // namespace recon
