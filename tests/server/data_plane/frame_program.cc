#include "tests/server/data_plane/frame_program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"

namespace recon {
namespace {

constexpr uint32_t kShards = 4;
constexpr uint32_t kShardValues = 3;
constexpr uint32_t kOther = 3;  // The number of the worker that means no good.
constexpr uint64_t kFirstEpoch = 4;
// An answer that does not come within that never comes.
constexpr absl::Duration kPatience = absl::Seconds(20);

uint64_t IncarnationOf(uint32_t worker) { return 1000 + worker; }

ModelSpec TheModel() {
  ModelSpec model;
  model.set_name("model");
  for (uint32_t i = 0; i < kShards; ++i) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(absl::StrCat("tensor", i));
    tensor->set_group(absl::StrCat("group", i));
    tensor->add_shape(kShardValues);
  }
  return model;
}

// A push of x takes x away.
ParamServer::Options OptionsOf(int bound, bool small_memory) {
  ParamServer::Options options;
  options.rules.optimizer.kind = OptimizerKind::kSgd;
  options.rules.optimizer.learning_rate = 1;
  options.rules.bound = bound;
  options.rules.cluster_epoch = kFirstEpoch;
  options.apply_threads = 1;
  if (small_memory) options.bytes_in_flight_max = 4096;
  return options;
}

}  // namespace

// A request under way.
struct FrameProgram::Sent {
  std::atomic<int> taken{0};
  std::atomic<int> answers{0};
  absl::StatusOr<ByteChain> reply = ByteChain();  // Of the first answer.
  Notification answered;
};

FrameProgram::FrameProgram(const uint8_t* data, size_t size)
    : choices_(data, size), member_(choices_.Yes()), bound_(static_cast<int>(choices_.Of(3)) - 1) {
  server_ = std::make_unique<ParamServer>(OptionsOf(bound_, choices_.Of(4) == 1), &metrics_);
  for (uint32_t number = 1; number <= 2; ++number) workers_.push_back({number, 0, false, std::nullopt});
}

FrameProgram::~FrameProgram() = default;

std::string FrameProgram::Run() {
  Define();
  for (const Worker& worker : workers_) {
    server_->members()->Admit(WorkerId(worker.number), Incarnation(IncarnationOf(worker.number)), 0);
    server_->members()->Activate(WorkerId(worker.number), 0, false);
  }
  if (member_) {
    server_->members()->Admit(WorkerId(kOther), Incarnation(IncarnationOf(kOther)), 0);
    server_->members()->Activate(WorkerId(kOther), 0, false);
  }
  while (!choices_.empty() && violated_.empty()) {
    Step();
    Settle();
  }
  if (violated_.empty()) FinishPushes();
  if (violated_.empty() && !member_) CheckValues();
  if (violated_.empty()) CheckIdle();
  return violated_;
}

void FrameProgram::Define() {
  if (!server_->DefineModel(TheModel()).ok()) return Fail("the model is refused");
  constexpr uint32_t kInitializes = 99;
  server_->members()->Admit(WorkerId(kInitializes), Incarnation(IncarnationOf(kInitializes)), 0);
  server_->AwaitInitialValues(WorkerId(kInitializes), [] {});
  Frame frame = HeaderOf(FrameKind::kInit, kInitializes, 0);
  for (uint32_t shard = 0; shard < kShards; ++shard) AddPart(&frame, shard, 0);
  const auto sent = Send(EncodeFrame(frame), IncarnationOf(kInitializes));
  sent->answered.WaitForNotification();
  if (!sent->reply.ok()) Fail(absl::StrCat("initial values: ", sent->reply.status().ToString()));
  server_->members()->Expel(WorkerId(kInitializes));
}

void FrameProgram::Step() {
  switch (choices_.Of(8)) {
    case 0:
    case 1:
    case 2:
      return Act(&workers_[choices_.Of(2)]);
    case 3:
      return Manage();
    default:
      return SendAnything();
  }
}

void FrameProgram::Manage() {
  Worker& worker = workers_[choices_.Of(2)];
  StepMembers& members = *server_->members();
  const WorkerId other(kOther);
  switch (choices_.Of(7)) {
    case 0:
      return server_->Tick(Now() + (choices_.Yes() ? limits::kReplyWaitMax : limits::kInStepPatience));
    case 1:  // It learns of it from an answer.
      return members.Park(WorkerId(worker.number));
    case 2:
      if (worker.push) return;
      worker.idle = true;
      return members.Deactivate(WorkerId(worker.number));
    case 3:
      return members.SetQuorum(bound_ == 0 ? choices_.Of(3) : 0,
                               choices_.Yes() ? absl::ZeroDuration() : absl::Hours(1));
    case 4:
      return members.NoteAcknowledged(WorkerId(worker.number), worker.next_step);
    case 5:
      return BeginEpoch();
    default:
      if (!member_) return;
      if (choices_.Yes()) return members.Expel(other);
      members.Admit(other, Incarnation(IncarnationOf(kOther)), 0);
      members.Activate(other, 0, false);
  }
}

// All register again.
void FrameProgram::BeginEpoch() {
  ++counts_.epochs;
  server_->SetClusterEpoch(++epoch_);
  for (Worker& worker : workers_) {
    const WorkerId id(worker.number);
    const uint64_t step = worker.push ? worker.push->step : worker.next_step;
    server_->members()->Admit(id, Incarnation(IncarnationOf(worker.number)), step);
    if (worker.idle) continue;
    const uint64_t first = server_->members()->Activate(id, step, /*resumes=*/worker.push.has_value());
    if (!worker.push) worker.next_step = first;
  }
}

// What the lanes were given before is done when this returns, or refused.
void FrameProgram::Settle() {
  Frame frame = HeaderOf(FrameKind::kPull, workers_[0].number, 0);
  for (uint32_t shard = 0; shard < kShards; ++shard) AddPart(&frame, shard, 0);
  for (ByteChain& payload : frame.payloads) payload = ByteChain();
  Send(EncodeFrame(frame), IncarnationOf(workers_[0].number))->answered.WaitForNotification();
}

void FrameProgram::Act(Worker* worker) {
  if (!worker->push) return Begin(worker);
  if (worker->push->sent.size() < worker->push->cuts.size()) return SendNext(worker);
  Look(worker);
}

void FrameProgram::Begin(Worker* worker) {
  if (std::exchange(worker->idle, false)) {
    worker->next_step = server_->members()->Activate(WorkerId(worker->number), worker->next_step, false);
  }
  Push push;
  push.step = worker->next_step;
  // Even, so that the mean of two is exact.
  push.value = static_cast<float>(2 * (1 + choices_.Of(50)));
  push.cuts = {0};
  if (const uint32_t cut = choices_.Of(kShards); cut > 0) push.cuts.push_back(cut);
  worker->push = std::move(push);
}

void FrameProgram::SendNext(Worker* worker) {
  Push& push = *worker->push;
  const size_t next = push.sent.size();
  const uint32_t end = next + 1 < push.cuts.size() ? push.cuts[next + 1] : kShards;
  if (next == 0) push.epoch = epoch_;
  Frame frame = HeaderOf(FrameKind::kPushPull, worker->number, push.step);
  frame.header.cluster_epoch = push.epoch;
  for (uint32_t shard = push.cuts[next]; shard < end; ++shard) AddPart(&frame, shard, push.value);
  push.sent.push_back(Send(EncodeFrame(frame), IncarnationOf(worker->number)));
}

void FrameProgram::Look(Worker* worker) {
  Push& push = *worker->push;
  size_t acknowledged = 0, aborted = 0;
  for (const auto& sent : push.sent) {
    if (!sent->answered.HasBeenNotified()) return;
    acknowledged += sent->reply.ok() ? 1 : 0;
    aborted += absl::IsAborted(sent->reply.status()) ? 1 : 0;
  }
  if (acknowledged == push.sent.size()) return NoteAcknowledged(worker);
  if (aborted == push.sent.size()) return MoveToLaterStep(worker);
  if (acknowledged + aborted == push.sent.size()) {
    return Fail(absl::StrCat("step ", push.step, " of worker ", worker->number, " counts in part"));
  }
  push.sent.clear();  // All of it again.
}

void FrameProgram::NoteAcknowledged(Worker* worker) {
  ++counts_.acknowledged;
  acknowledged_[worker->push->step].push_back(worker->push->value);
  worker->next_step = worker->push->step + 1;
  worker->push.reset();
}

void FrameProgram::MoveToLaterStep(Worker* worker) {
  Push& push = *worker->push;
  const uint64_t step = server_->members()->Activate(WorkerId(worker->number), push.step + 1, false);
  if (step <= push.step) Fail(absl::StrCat("step ", push.step, " is asked for again, as ", step));
  ++counts_.moved;
  push.step = step;
  push.sent.clear();
}

void FrameProgram::SendAnything() {
  std::string bytes;
  if (choices_.Of(8) == 0) {
    bytes = choices_.Bytes(200);
  } else {
    bytes = EncodeFrame(AnyFrame()).ToString();
    for (uint32_t flips = choices_.Of(8) == 0 ? 1 + choices_.Of(4) : 0; flips > 0; --flips) {
      bytes[choices_.Of(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(choices_.Byte());
    }
  }
  // It has not the others' secrets.
  const auto sent = Send(ByteChain::FromString(bytes), choices_.Of(4) > 0 ? IncarnationOf(kOther) : 0);
  Settle();
  if (!sent->answered.HasBeenNotified()) return;
  ++(sent->reply.ok() ? counts_.taken : counts_.refused);
  if (!member_ && sent->reply.ok()) Fail("a request of a stranger is answered");
}

std::shared_ptr<FrameProgram::Sent> FrameProgram::Send(const ByteChain& bytes, uint64_t sender) {
  auto sent = std::make_shared<Sent>();
  all_sent_.push_back(sent);
  RequestContext context;
  context.sender = Incarnation(sender);
  server_->Handle(
      bytes, Now(), [sent] { ++sent->taken; },
      [sent](absl::StatusOr<ByteChain> reply) {
        if (sent->answers.fetch_add(1) > 0) return;
        sent->reply = std::move(reply);
        sent->answered.Notify();
      },
      std::move(context));
  return sent;
}

Frame FrameProgram::HeaderOf(FrameKind kind, uint32_t worker, uint64_t step) const {
  Frame frame;
  frame.header.kind = static_cast<uint8_t>(kind);
  frame.header.worker = worker;
  frame.header.incarnation = IncarnationOf(worker);
  frame.header.cluster_epoch = epoch_;
  frame.header.step = step;
  frame.header.order_key = worker;
  frame.header.samples = 1;
  frame.header.push_parts = kShards;
  return frame;
}

void FrameProgram::AddPart(Frame* frame, uint32_t shard, float value) const {
  PartHeader part;
  part.shard = shard;
  part.count = kShardValues;
  part.version = 0;
  const std::vector<float> values(kShardValues, value);
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  frame->parts.push_back(part);
  frame->payloads.push_back(ByteChain::FromString(bytes));
}

// Often one that makes sense but for a field or two.
Frame FrameProgram::AnyFrame() {
  const bool sound = choices_.Of(4) == 0;
  const auto odd = [this, sound] { return !sound && choices_.Of(8) == 0; };
  const Worker& victim = workers_[choices_.Of(2)];
  const uint64_t step = (victim.push ? victim.push->step : victim.next_step) + choices_.Of(3);
  Frame frame = HeaderOf(static_cast<FrameKind>(1 + choices_.Of(4)),
                         choices_.Yes() ? kOther : 1 + choices_.Of(2), step);
  FrameHeader& header = frame.header;
  if (odd()) header.kind = choices_.Byte();
  if (odd()) header.reply_codec = static_cast<uint8_t>(choices_.Of(kCodecIdMax + 2));
  if (odd()) header.worker = static_cast<uint32_t>(choices_.Number());
  if (odd()) header.incarnation = choices_.Yes() ? IncarnationOf(kOther) : choices_.Number();
  if (odd()) header.cluster_epoch = epoch_ - 1 + choices_.Of(3);
  if (odd()) header.step = choices_.Number();
  if (odd()) header.order_key = choices_.Number();
  if (odd()) header.samples = static_cast<uint32_t>(choices_.Number());
  if (odd()) header.gradient_norm = static_cast<float>(choices_.Real());
  if (odd()) header.push_parts = choices_.Of(kShards + 2);
  if (odd()) header.server_parts = choices_.Of(kShards + 2);
  for (uint32_t shard = choices_.Of(kShards); shard < kShards; shard += 1 + choices_.Of(2)) {
    AddPart(&frame, odd() ? choices_.Of(kShards + 2) : shard, static_cast<float>(choices_.Real()));
    PartHeader& part = frame.parts.back();
    if (odd()) part.count = static_cast<uint32_t>(choices_.Number());
    if (odd()) part.version = choices_.Number();
    if (odd()) part.has_learning_rate = choices_.Byte();
    if (odd()) part.learning_rate = choices_.Real();
    if (odd()) part.exponent = static_cast<int8_t>(choices_.Byte());
    if (!odd()) continue;
    part.codec = static_cast<uint8_t>(choices_.Of(kCodecIdMax + 2));
    frame.payloads.back() = ByteChain::FromString(choices_.Bytes(40));
  }
  return frame;
}

void FrameProgram::FinishPushes() {
  server_->members()->Expel(WorkerId(kOther));
  server_->members()->SetQuorum(0, absl::ZeroDuration());
  for (Worker& worker : workers_) {
    if (!worker.push) server_->members()->Deactivate(WorkerId(worker.number));
  }
  const absl::Time end = Now() + kPatience;
  for (bool all = false; !all && violated_.empty();) {
    all = true;
    for (Worker& worker : workers_) {
      while (worker.push && worker.push->sent.size() < worker.push->cuts.size()) SendNext(&worker);
    }
    Settle();
    for (Worker& worker : workers_) {
      if (!worker.push) continue;
      Look(&worker);
      if (worker.push) {
        all = false;
      } else {
        server_->members()->Deactivate(WorkerId(worker.number));
      }
    }
    if (Now() > end) return Fail("a push is not acknowledged in the end");
  }
}

void FrameProgram::CheckValues() {
  float expected = 0;
  for (const auto& [step, values] : acknowledged_) {
    float sum = 0;
    for (const float value : values) sum += value;
    // A synchronous step's is the mean.
    expected -= bound_ == 0 ? sum / static_cast<float>(values.size()) : sum;
  }
  Frame frame = HeaderOf(FrameKind::kPull, workers_[0].number, 0);
  for (uint32_t shard = 0; shard < kShards; ++shard) AddPart(&frame, shard, 0);
  for (ByteChain& payload : frame.payloads) payload = ByteChain();
  for (PartHeader& part : frame.parts) part.version = kNoVersion;
  const auto sent = Send(EncodeFrame(frame), IncarnationOf(workers_[0].number));
  sent->answered.WaitForNotification();
  if (!sent->reply.ok()) return Fail(absl::StrCat("a pull: ", sent->reply.status().ToString()));
  const Frame reply = *DecodeFrame(*sent->reply);
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    const std::string bytes = reply.payloads[i].ToString();
    float values[kShardValues];
    if (bytes.size() != sizeof(values))
      return Fail(absl::StrCat("shard ", i, " has ", bytes.size(), " bytes"));
    std::memcpy(values, bytes.data(), sizeof(values));
    for (const float value : values) {
      if (value == expected) continue;
      return Fail(absl::StrCat("shard ", reply.parts[i].shard, " has ", value, " instead of ", expected));
    }
  }
}

void FrameProgram::CheckIdle() {
  server_->BeginDrain();
  if (!server_->WaitUntilIdle(kPatience)) return Fail("a request is never answered");
  for (const auto& sent : all_sent_) {
    if (sent->answers != 1) return Fail(absl::StrCat("a request has ", sent->answers.load(), " answers"));
    if (sent->taken > 1) return Fail("a request is taken twice");
  }
}

}  // namespace recon
