#include "tools/bench/push_load.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/codec/codec.h"
#include "common/transport/send_window.h"

namespace recon {

PushLoad::PushLoad(ParamServer* params, uint32_t worker)
    : params_(params), worker_(worker), incarnation_(RandomNonZero()) {
  params_->members()->Admit(WorkerId(worker), Incarnation(incarnation_), 0);
  params_->members()->Activate(WorkerId(worker), 0, false);
  thread_ = std::thread([this] { Run(); });
}

PushLoad::~PushLoad() {
  stop_ = true;
  thread_.join();
}

PushLoad::Taken PushLoad::Take() {
  MutexLock lock(&mu_);
  const absl::Time now = Now();
  NoteGap(now);
  taken_since_ = now;
  return std::exchange(taken_, {});
}

absl::Status PushLoad::status() {
  MutexLock lock(&mu_);
  return status_;
}

void PushLoad::NoteGap(absl::Time now) {
  constexpr absl::Duration kSecond = absl::Seconds(1);
  const auto last = static_cast<size_t>((now - taken_since_) / kSecond);
  if (last >= taken_.longest_gaps.size()) taken_.longest_gaps.resize(last + 1);
  for (auto i = static_cast<size_t>(std::max(last_ - taken_since_, absl::ZeroDuration()) / kSecond);
       i <= last; ++i) {
    const absl::Time end = std::min(now, taken_since_ + static_cast<int64_t>(i + 1) * kSecond);
    double& longest = taken_.longest_gaps[i];
    longest = std::max(longest, absl::ToDoubleSeconds(end - last_));
  }
}

void PushLoad::Run() {
  constexpr int kInFlight = 4;
  const auto layout = params_->layout();
  std::vector<Frame> frames(1);  // Of one push, without what differs from step to step.
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < layout->shard_count(); ++i) {
    PartHeader part;
    part.shard = i;
    part.count = layout->shards()[i].size;
    part.codec = static_cast<uint8_t>(CodecId::kFp16);
    part.version = 0;
    const std::vector<float> gradient(part.count, 1e-3f);
    std::string payload(EncodedBytes(CodecId::kFp16, part.count), '\0');
    Encode(CodecId::kFp16, gradient.data(), part.count, reinterpret_cast<uint8_t*>(payload.data()));
    if (bytes > 0 && bytes + payload.size() > FrameBytesFor(/*servers=*/1)) {
      frames.emplace_back();
      bytes = 0;
    }
    bytes += payload.size();
    frames.back().parts.push_back(part);
    frames.back().payloads.push_back(ByteChain::FromString(std::move(payload)));
  }
  for (Frame& frame : frames) {
    frame.header.kind = static_cast<uint8_t>(FrameKind::kPush);
    frame.header.worker = worker_;
    frame.header.incarnation = incarnation_;
    frame.header.cluster_epoch = 1;
    frame.header.samples = 1;
    frame.header.push_parts = layout->shard_count();
  }
  for (uint64_t step = 0; !stop_; ++step) {
    for (size_t i = 0; i < frames.size() && !stop_; ++i) {
      {
        MutexLock lock(&mu_);
        mu_.Await([this] { return in_flight_ < kInFlight; });
        ++in_flight_;
      }
      Frame frame = frames[i];
      frame.header.step = step;
      const absl::Time sent = Now();
      params_->Handle(
          EncodeFrame(std::move(frame)), sent, [] {},
          [this, sent](const absl::StatusOr<ByteChain>& reply) {
            MutexLock lock(&mu_);
            const absl::Time now = Now();
            --in_flight_;
            status_.Update(reply.status());
            if (!reply.ok()) return;
            ++taken_.frames;
            NoteGap(now);
            taken_.slowest = std::max(taken_.slowest, absl::ToDoubleSeconds(now - sent));
            last_ = now;
          },
          {Incarnation(incarnation_)});
    }
  }
  MutexLock lock(&mu_);
  mu_.Await([this] { return in_flight_ == 0; });
}

}  // namespace recon
