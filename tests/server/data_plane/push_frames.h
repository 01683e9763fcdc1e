#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "server/data_plane/param_server.h"

namespace recon {

// A ParamServer and frames for it, without a network.
class ParamServerHarness {
 public:
  static constexpr uint64_t kEpoch = 4;

  explicit ParamServerHarness(int bound, OptimizerKind kind = OptimizerKind::kSgd, double rate = 1,
                              int apply_threads = 2)
      : ParamServerHarness(MakeOptions(bound, kind, rate, apply_threads)) {}
  explicit ParamServerHarness(const ParamServer::Options& options)
      : cluster_epoch_(options.rules.cluster_epoch), server_(options, &metrics_) {}

  static ParamServer::Options MakeOptions(int bound, OptimizerKind kind, double rate, int apply_threads) {
    ParamServer::Options options;
    options.rules.optimizer.kind = kind;
    options.rules.optimizer.learning_rate = rate;
    options.rules.bound = bound;
    options.apply_threads = apply_threads;
    options.rules.cluster_epoch = kEpoch;
    return options;
  }

  ParamServer& server() { return server_; }

  void Define(const ModelSpec& model, const std::vector<float>& values) {
    if (!server_.DefineModel(model).ok()) throw std::runtime_error("DefineModel");
    server_.members()->Admit(WorkerId(999), Incarnation(1), 0);
    server_.AwaitInitialValues(WorkerId(999), [] {});
    Frame frame = MakeFrame(FrameKind::kInit, WorkerId(999), Incarnation(1), 0, values);
    if (!Call(frame).ok()) throw std::runtime_error("Init");
    server_.members()->Expel(WorkerId(999));
  }

  void Join(uint32_t worker, uint64_t next_step = 0) {
    server_.members()->Admit(WorkerId(worker), IncarnationOf(worker), next_step);
    server_.members()->Activate(WorkerId(worker), next_step, false);
  }
  static Incarnation IncarnationOf(uint32_t worker) { return Incarnation(1000 + worker); }

  absl::Status ChangeRules(const ApplyRules& rules) {
    const absl::Status changed = server_.ChangeRules(rules);
    if (changed.ok()) cluster_epoch_ = rules.cluster_epoch;
    return changed;
  }

  // A frame with all shards; no values for a pull.
  Frame MakeFrame(FrameKind kind, WorkerId worker, Incarnation incarnation, uint64_t step,
                  const std::vector<float>& values) {
    const auto layout = server_.layout();
    Frame frame;
    frame.header.kind = static_cast<uint8_t>(kind);
    frame.header.worker = worker.value();
    frame.header.incarnation = incarnation.value();
    frame.header.cluster_epoch = cluster_epoch_;
    frame.header.step = step;
    frame.header.order_key = worker.value();
    frame.header.samples = 1;
    frame.header.push_parts = layout->shard_count();
    for (uint32_t i = 0; i < layout->shard_count(); ++i) {
      PartHeader part;
      part.shard = i;
      part.count = layout->shards()[i].size;
      part.version = kind == FrameKind::kPull ? kNoVersion : 0;
      frame.parts.push_back(part);
      std::string bytes;
      if (!values.empty()) {
        bytes.resize(part.count * sizeof(float));
        std::memcpy(bytes.data(), values.data() + layout->shards()[i].offset, bytes.size());
      }
      frame.payloads.push_back(ByteChain::FromString(bytes));
    }
    return frame;
  }
  Frame PushFrame(uint32_t worker, uint64_t step, float value) {
    return MakeFrame(FrameKind::kPushPull, WorkerId(worker), IncarnationOf(worker), step,
                     std::vector<float>(server_.layout()->params(), value));
  }

  // Encodes a part that is FP32 in `codec` (fp16 or bf16), in memory that may be written.
  static void EncodePart(Frame* frame, size_t index, CodecId codec) {
    const std::string fp32 = frame->payloads[index].ToString();
    std::vector<float> values(fp32.size() / sizeof(float));
    std::memcpy(values.data(), fp32.data(), fp32.size());
    const size_t bytes = EncodedBytes(codec, values.size());
    const std::shared_ptr<uint8_t[]> memory(new uint8_t[bytes]);
    Encode(codec, values.data(), values.size(), memory.get());
    frame->parts[index].codec = static_cast<uint8_t>(codec);
    frame->payloads[index] = ByteChain();
    frame->payloads[index].Append(memory.get(), bytes, memory);
  }

  // A call under way.
  struct Pending {
    std::atomic<bool> taken{false};
    Notification done;
    absl::StatusOr<ByteChain> reply = ByteChain();
  };
  std::shared_ptr<Pending> Send(const Frame& frame, RequestContext context = {}) {
    return SendBytes(EncodeFrame(frame), std::move(context));
  }
  std::shared_ptr<Pending> SendBytes(const ByteChain& bytes, RequestContext context = {}) {
    auto pending = std::make_shared<Pending>();
    const auto frame = DecodeFrame(bytes);
    if (frame.ok() && context.sender == Incarnation())
      context.sender = Incarnation(frame->header.incarnation);
    const auto taken = [pending] {
      if (pending->taken.exchange(true) || pending->done.HasBeenNotified()) {
        throw std::runtime_error("taken twice, or after the answer");
      }
    };
    const auto done = [pending](absl::StatusOr<ByteChain> reply) {
      pending->reply = std::move(reply);
      pending->done.Notify();
    };
    server_.Handle(bytes, Now(), taken, done, std::move(context));
    return pending;
  }
  absl::Status Call(const Frame& frame) {
    const auto pending = Send(frame);
    pending->done.WaitForNotification();
    return pending->reply.status();
  }
  std::shared_ptr<Pending> Push(uint32_t worker, uint64_t step, float value) {
    return Send(PushFrame(worker, step, value));
  }

  // All parameters as they are now.
  std::vector<float> Values(uint32_t worker) {
    const auto pending = Send(MakeFrame(FrameKind::kPull, WorkerId(worker), IncarnationOf(worker), 0, {}));
    pending->done.WaitForNotification();
    if (!pending->reply.ok()) throw std::runtime_error(std::string(pending->reply.status().message()));
    std::vector<float> values(server_.layout()->params());
    const Frame reply = *DecodeFrame(*pending->reply);
    for (size_t i = 0; i < reply.parts.size(); ++i) {
      const std::string bytes = reply.payloads[i].ToString();
      std::memcpy(values.data() + server_.layout()->shards()[reply.parts[i].shard].offset, bytes.data(),
                  bytes.size());
    }
    return values;
  }

 private:
  uint64_t cluster_epoch_;
  Metrics metrics_;
  ParamServer server_;
};

}  // namespace recon
