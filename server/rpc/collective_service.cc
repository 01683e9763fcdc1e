#include "server/rpc/collective_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"
#include "server/collective/combine.h"

namespace recon {
namespace {

// Less is combined on the thread that has read it: handing over takes longer.
constexpr uint64_t kInlineBytes = 32 << 10;
constexpr absl::Duration kLook = absl::Milliseconds(100);
// This process itself stood still for so long: it cannot say who else did.
constexpr absl::Duration kStoodStill = absl::Seconds(1);

ByteChain BodyOf(const google::protobuf::MessageLite& message) {
  return ByteChain::FromString(message.SerializeAsString());
}

}  // namespace

// One member's stream. Threads: reactions on gRPC's, Send() and Close() on any. Deletes itself.
class CollectiveService::Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(CollectiveService* service, uint64_t number) : service_(service), number_(number) {}

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
    absl::StatusOr<CollectiveFrame> frame = bytes.ok() ? DecodeFrame(*bytes) : bytes.status();
    const absl::Status handled = frame.ok() ? service_->Handle(number_, *std::move(frame)) : frame.status();
    if (!handled.ok()) return End(handled, std::string(handled.message()));
    StartRead(&incoming_);  // Only now: frames of a stream are handled in their order.
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
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
  grpc::ByteBuffer incoming_;

  Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
};

CollectiveService::CollectiveService(Options options)
    : options_(std::move(options)), sets_(SetBook::Options{options_.patience, RandomNonZero()}) {}

CollectiveService::~CollectiveService() {
  alarm_ = nullptr;
  pool_ = nullptr;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CollectiveService::Exchange(
    grpc::CallbackServerContext* /*context*/) {
  MutexLock lock(&mu_);
  if (pool_ == nullptr) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    pool_ = std::make_unique<LanePool>("combine", static_cast<int>(std::min(cores, 8U)));
    alarm_ = std::make_unique<Alarm>([this] { EvictSilent(); });
  }
  auto* const stream = new Stream(this, ++last_stream_);
  streams_[last_stream_] = stream;
  stream->Start();
  if (closed_) stream->Close(absl::UnavailableError("the server is ending"));
  return stream;
}

absl::Status CollectiveService::Handle(uint64_t stream, CollectiveFrame frame) {
  ChunkBook::Decided decided;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    SetBook::Changes changes;
    const absl::Time now = Now();
    sets_.Heard(stream, now);
    switch (frame.header.kind) {
      case FrameKind::kHeartbeat:
        break;
      case FrameKind::kJoin:
        status = Join(stream, frame, &changes);
        break;
      case FrameKind::kLeave:
        sets_.Leave(stream, frame.text, &changes);
        break;
      case FrameKind::kChunk:
        if (chunks_.bytes() + frame.payload.size() > limits::kCollectiveHeldBytesMax) {
          status =
              absl::ResourceExhaustedError(absl::StrCat("calls that wait for members hold ", chunks_.bytes(),
                                                        " bytes, at most ", limits::kCollectiveHeldBytesMax));
          break;
        }
        status = chunks_.Add(stream, std::move(frame), now, &decided);
        break;
      case FrameKind::kFailCall: {
        const absl::Status why(static_cast<absl::StatusCode>(frame.header.code), frame.text);
        if (!why.ok()) status = chunks_.FailCall(stream, frame.header, why, &decided);
        break;
      }
      case FrameKind::kGone:
        status = chunks_.Enter(stream, frame.header);
        if (status.ok()) {
          chunks_.Lose(frame.header.set, frame.header.epoch, frame.header.lost, frame.text, &decided);
        }
        break;
      default:
        status = absl::InvalidArgumentError(
            absl::StrCat("a frame of kind ", static_cast<int>(frame.header.kind), " from a member"));
    }
    Apply(&changes, &decided);
  }
  Finish(std::move(decided.ready));
  return status;
}

absl::Status CollectiveService::Join(uint64_t stream, const CollectiveFrame& frame,
                                     SetBook::Changes* changes) {
  if (!options_.head) {
    return absl::FailedPreconditionError("this server is not the head of its job: sets are joined there");
  }
  JoinRequest request;
  if (!request.ParseFromString(frame.payload.ToString())) {
    return absl::InvalidArgumentError("a request to join that cannot be read");
  }
  const absl::Time now = Now();
  RECON_RETURN_IF_ERROR(sets_.Join(stream, request, now, changes));
  looked_ = now;
  alarm_->Set(now + kLook);
  return absl::OkStatus();
}

void CollectiveService::Apply(SetBook::Changes* changes, ChunkBook::Decided* decided) {
  for (const auto& over : changes->over) chunks_.Lose(over.set, over.epoch, over.place, over.why, decided);
  const std::vector<std::string> others = options_.other_servers && !changes->epochs.empty()
                                              ? options_.other_servers()
                                              : std::vector<std::string>();
  for (auto& [stream, epoch] : changes->epochs) {
    FrameHeader place;
    place.kind = FrameKind::kEpoch;
    place.set = epoch.set();
    place.epoch = epoch.epoch();
    place.place = epoch.place();
    place.members = static_cast<uint32_t>(epoch.members_size());
    // Its own head's book knows of the epoch, and who is lost from it, before anybody speaks there.
    (void)chunks_.Enter(stream, place);
    for (const std::string& other : others) epoch.add_other_servers(other);
    Tell(stream, {place, "", BodyOf(epoch)});
  }
  for (const auto& [stream, lost] : changes->losses) {
    FrameHeader header;
    header.kind = FrameKind::kLost;
    Tell(stream, {header, "", BodyOf(lost)});
  }
  for (const ChunkBook::Outcome& outcome : decided->failed) Tell(outcome.stream, outcome.frame);
  for (const auto& [stream, why] : changes->sent_away) {
    const auto found = streams_.find(stream);
    if (found != streams_.end()) found->second->Close(why);
  }
}

void CollectiveService::Tell(uint64_t stream, const CollectiveFrame& frame) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;  // It has gone meanwhile.
  grpc::ByteBuffer message = BufferOf(EncodeFrame(frame));
  found->second->Send(&message);
}

void CollectiveService::Finish(std::vector<ChunkBook::Ready> ready) {
  for (ChunkBook::Ready& chunk : ready) {
    const uint64_t bytes =
        chunk.chunk.combine == Combine::kReduce ? chunk.chunk.bytes * chunk.contributions.size() : 0;
    if (bytes <= kInlineBytes) {
      Answer(chunk);
      continue;
    }
    const auto lane = static_cast<uint32_t>(chunk.chunk.chunk + chunk.chunk.sequence + chunk.chunk.set);
    pool_->Post(lane, [this, chunk = std::move(chunk)] { Answer(chunk); });
  }
}

void CollectiveService::Answer(const ChunkBook::Ready& ready) {
  const ByteChain result = CombineChunk(ready.chunk, ready.contributions);
  CollectiveFrame outcome{ready.chunk, "", {}};
  outcome.header.kind = FrameKind::kOutcome;
  MutexLock lock(&mu_);
  for (uint32_t place = 0; place < ready.streams.size(); ++place) {
    if (ready.streams[place] == 0) continue;
    outcome.payload = IsReceiver(ready.chunk, place) ? result : ByteChain();
    Tell(ready.streams[place], outcome);
  }
}

void CollectiveService::Ended(uint64_t stream, const std::string& why) {
  ChunkBook::Decided decided;
  {
    MutexLock lock(&mu_);
    SetBook::Changes changes;
    sets_.Leave(stream, why, &changes);
    Apply(&changes, &decided);
    ChunkBook::Decided also;
    chunks_.End(stream, why, &also);
    changes = {};
    Apply(&changes, &also);
    for (ChunkBook::Ready& ready : also.ready) decided.ready.push_back(std::move(ready));
  }
  Finish(std::move(decided.ready));
}

void CollectiveService::Forget(uint64_t stream) {
  MutexLock lock(&mu_);
  streams_.erase(stream);
}

void CollectiveService::EvictSilent() {
  MutexLock lock(&mu_);
  const absl::Time now = Now();
  if (now - looked_ > kStoodStill) sets_.Forgive(now);
  looked_ = now;
  SetBook::Changes changes;
  ChunkBook::Decided decided;
  sets_.Evict(now, &changes);
  for (const auto& [stream, why] : changes.sent_away) {
    LogInfo("a member of a set is sent away: {}", why.message());
    chunks_.End(stream, std::string(why.message()), &decided);
  }
  Apply(&changes, &decided);
  if (!sets_.empty()) alarm_->Set(now + kLook);
}

grpc::ServerUnaryReactor* CollectiveService::Sets(grpc::CallbackServerContext* context,
                                                  const SetsRequest* /*request*/, SetsReply* reply) {
  {
    MutexLock lock(&mu_);
    *reply = sets_.Sets();
    const absl::Time now = Now();
    for (const ChunkBook::Waiting& waiting : chunks_.waiting()) {
      for (SetStatus& set : *reply->mutable_sets()) {
        if (set.set() != waiting.set || set.epoch() != waiting.epoch) continue;
        PendingCall* call = set.add_calls();
        call->set_what(waiting.what);
        call->set_sequence(waiting.sequence);
        call->set_waiting_seconds(absl::ToDoubleSeconds(now - waiting.since));
        const auto name = [&](uint32_t place) { return set.members(static_cast<int>(place)).name(); };
        for (const uint32_t place : waiting.here) call->add_here(name(place));
        for (const uint32_t place : waiting.missing) call->add_missing(name(place));
      }
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

void CollectiveService::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  for (const auto& [number, stream] : streams_) stream->Close(absl::UnavailableError("the server is ending"));
}

}  // namespace recon
