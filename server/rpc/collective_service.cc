#include "server/rpc/collective_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/rpc/open_call.h"
#include "common/rpc/payload.h"
#include "common/rpc/sender.h"
#include "common/rpc/status_codes.h"
#include "common/trace/recorder.h"
#include "common/trace/span_names.h"

namespace recon {
namespace {

// Less is combined on the thread that has read it: handing over takes longer.
constexpr uint64_t kInlineBytes = 32 << 10;
constexpr absl::Duration kLook = absl::Milliseconds(100);

// Who joins which set, for the audit log.
std::string DescribeJoin(const CallFrame& frame) {
  JoinRequest request;
  if (!request.ParseFromString(frame.payload.ToString())) return "a request that cannot be read";
  return absl::StrCat("set '", request.set(), "', member '", request.member(), "', ",
                      request.elastic() ? std::string("elastic")
                                        : absl::StrCat("rank ", request.rank(), " of ", request.size()));
}

}  // namespace

// One member's stream. Threads: reactions on gRPC's, Send() and Close() on any. Deletes itself.
class CollectiveService::Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `connection`: what it is over; null: unknown.
  Stream(CollectiveService* service, uint64_t number, grpc::CallbackServerContext* context,
         std::shared_ptr<Connection> connection)
      : service_(service),
        number_(number),
        context_(context),
        connection_(std::move(connection)),
        call_(connection_) {}

  void Start() { StartRead(&incoming_); }

  void Send(grpc::ByteBuffer* message) {
    MutexLock lock(&mu_);
    if (finished_ || closing_.has_value()) return;
    outgoing_.emplace_back().Swap(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  // When what is being written is written.
  void Close(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (closing_.has_value()) return;
    closing_ = status;
    FinishIfIdle();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus(), "its connection ended");
    absl::StatusOr<ByteChain> bytes = ChainOf(&incoming_);
    absl::StatusOr<CallFrame> frame = bytes.ok() ? DecodeCallFrame(*bytes) : bytes.status();
    const absl::StatusOr<bool> member =
        frame.ok() ? service_->Handle(number_, *context_, *std::move(frame)) : frame.status();
    if (!member.ok()) return End(member.status(), std::string(member.status().message()));
    if (*member && connection_ != nullptr) connection_->NoteMember();
    StartRead(&incoming_);  // Only now: frames of a stream are handled in their order.
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    RECON_CHECK(!outgoing_.empty());
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      if (!closing_.has_value()) closing_ = absl::UnavailableError("the member cannot be written to");
    } else if (!outgoing_.empty()) {
      return StartWrite(&outgoing_.front());
    }
    FinishIfIdle();
  }
  void OnCancel() override { End(absl::CancelledError("the member has gone"), "its connection broke"); }
  void OnDone() override {
    service_->Forget(number_);
    delete this;
  }

 private:
  void End(const absl::Status& status, const std::string& why) {
    service_->Ended(number_, why);
    Close(status);
  }
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || !outgoing_.empty() || !closing_.has_value()) return;
    finished_ = true;
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>::Finish(ToGrpc(*closing_));
  }

  CollectiveService* const service_;
  const uint64_t number_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<Connection> connection_;
  const OpenCall call_;
  grpc::ByteBuffer incoming_;

  Mutex mu_ ABSL_ACQUIRED_AFTER(service_->mu_);
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
};

CollectiveService::CollectiveService(const Options& options)
    : head_(options.head),
      access_(options.access),
      connections_(options.connections),
      desk_(CallDesk::Options{
          options.head,
          {options.patience, RandomNonZero(), options.access != nullptr && options.access->wants_secret()},
          options.other_servers,
          options.ticket_key}) {}

CollectiveService::~CollectiveService() {
  alarm_ = nullptr;
  pool_ = nullptr;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CollectiveService::Exchange(
    grpc::CallbackServerContext* context) {
  const absl::Status allowed = access_ == nullptr
                                   ? absl::OkStatus()
                                   : access_->Check(context, Role::kWorker, "Exchange of collectives");
  MutexLock lock(&mu_);
  if (pool_ == nullptr) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    pool_ = std::make_unique<LanePool>("combine", static_cast<int>(std::min(cores, 8U)));
    alarm_ = std::make_unique<Alarm>([this] { EvictSilent(); });
  }
  auto* const stream = new Stream(this, ++last_stream_, context,
                                  connections_ == nullptr ? nullptr : connections_->Find(PeerOf(*context)));
  streams_[last_stream_] = stream;
  if (allowed.ok()) stream->Start();
  if (!allowed.ok()) stream->Close(allowed);
  if (closed_) stream->Close(absl::UnavailableError("the server is ending"));
  return stream;
}

absl::StatusOr<bool> CollectiveService::Handle(uint64_t stream, const grpc::CallbackServerContext& context,
                                               CallFrame frame) {
  CallDesk::Answers answers;
  absl::Status status;
  const bool joined = frame.header.kind == CallFrameKind::kJoin;
  const std::string who = joined && access_ != nullptr ? DescribeJoin(frame) : "";
  {
    MutexLock lock(&mu_);
    status = desk_.Handle(stream, std::move(frame), Now(), &answers);
    Send(&answers);
    if (joined && desk_.has_members()) alarm_->Set(Now() + kLook);
  }
  AnswerAll(std::move(answers.ready));
  if (joined && access_ != nullptr) access_->Note(context, "Join of a set", who, status);
  if (!status.ok()) return status;
  return answers.is_member;
}

void CollectiveService::Send(CallDesk::Answers* answers) {
  for (const ChunkBook::Outcome& outcome : answers->frames) Tell(outcome);
  for (const auto& [stream, why] : answers->sent_away) {
    LogInfo("a member of a set is sent away: {}", why.message());
    const auto found = streams_.find(stream);
    if (found != streams_.end()) found->second->Close(why);
  }
}

void CollectiveService::Tell(const ChunkBook::Outcome& outcome) {
  const auto found = streams_.find(outcome.stream);
  if (found == streams_.end()) return;  // It has gone meanwhile.
  grpc::ByteBuffer message = BufferOf(EncodeCallFrame(outcome.frame));
  found->second->Send(&message);
}

void CollectiveService::AnswerAll(std::vector<ChunkBook::Ready> ready) {
  for (ChunkBook::Ready& chunk : ready) {
    const CallHeader& header = chunk.chunk;
    if (trace::On()) trace::RecordPassive(trace::kWaitingForMembers, trace::NanosAt(chunk.since), {});
    const bool reduces = header.combine == Combine::kReduce;
    if (!reduces || header.bytes * chunk.contributions.size() <= kInlineBytes) {
      Answer(chunk);
      continue;
    }
    const auto lane = static_cast<uint32_t>(header.chunk + header.sequence + header.channel + header.set);
    pool_->Post(lane, [this, chunk = std::move(chunk)] { Answer(chunk); });
  }
}

void CollectiveService::Answer(const ChunkBook::Ready& ready) {
  const trace::Span span(trace::kCombining);
  const std::vector<ChunkBook::Outcome> outcomes = AnswersOf(ready);
  MutexLock lock(&mu_);
  for (const ChunkBook::Outcome& outcome : outcomes) Tell(outcome);
}

void CollectiveService::Ended(uint64_t stream, const std::string& why) {
  CallDesk::Answers answers;
  {
    MutexLock lock(&mu_);
    desk_.Ended(stream, why, &answers);
    Send(&answers);
  }
  AnswerAll(std::move(answers.ready));
}

void CollectiveService::Forget(uint64_t stream) {
  MutexLock lock(&mu_);
  const size_t erased = streams_.erase(stream);
  RECON_CHECK_EQ(erased, 1, "a stream ends twice");
}

void CollectiveService::EvictSilent() {
  CallDesk::Answers answers;
  MutexLock lock(&mu_);
  desk_.EvictSilent(Now(), &answers);
  Send(&answers);
  if (desk_.has_members()) alarm_->Set(Now() + kLook);
}

grpc::ServerUnaryReactor* CollectiveService::Sets(grpc::CallbackServerContext* context,
                                                  const SetsRequest* /*request*/, SetsReply* reply) {
  absl::Status allowed;
  if (access_ != nullptr) allowed = access_->Check(context, Role::kObserver, "Sets");
  if (allowed.ok() && !head_) {
    allowed = absl::FailedPreconditionError(
        "this server has joined the job of another, its head, which has the sets: ask that one");
  }
  if (allowed.ok()) {
    MutexLock lock(&mu_);
    *reply = desk_.Sets(Now());
  }
  auto* const reactor =
      new CountedReactor(connections_ == nullptr ? nullptr : connections_->Find(PeerOf(*context)));
  reactor->Finish(ToGrpc(allowed));
  return reactor;
}

void CollectiveService::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  for (const auto& [number, stream] : streams_) stream->Close(absl::UnavailableError("the server is ending"));
}

}  // namespace recon
