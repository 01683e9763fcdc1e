#include "worker/collective/group.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/payload.h"
#include "common/rpc/sets_client.h"
#include "common/rpc/status_codes.h"
#include "common/trace/recorder.h"
#include "grpcpp/generic/generic_stub.h"

namespace recon {
namespace {

// What a server has for its part of an orderly end.
constexpr absl::Duration kFarewell = absl::Seconds(1);
constexpr int kCallsSaidMax = 4;

// Channels of equal numbers would share one connection.
int NextConnection() {
  static std::atomic<int> last{1000};
  return ++last;
}

// Several: where members call different things, each of these waits for those who have called another.
std::string WaitingCalls(const SetStatus& set) {
  std::vector<std::string> said;
  for (const PendingCall& call : set.calls()) {
    if (said.size() == size_t{kCallsSaidMax}) {
      said.push_back(absl::StrCat("and ", set.calls_size() - kCallsSaidMax, " more"));
      break;
    }
    said.push_back(absl::StrCat(
        "call ", call.sequence(), " of set '", set.name(), "', ", call.what(), ", waits for ",
        absl::StrJoin(call.missing(), ", "), " since ",
        absl::FormatDuration(absl::Trunc(absl::Seconds(call.waiting_seconds()), absl::Milliseconds(1)))));
  }
  return absl::StrJoin(said, "; ");
}

}  // namespace

bool PendingCollective::AwaitFor(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_; });
}
bool PendingCollective::done() {
  MutexLock lock(&mu_);
  return done_;
}
absl::Status PendingCollective::status() {
  MutexLock lock(&mu_);
  return status_;
}
uint32_t PendingCollective::members() {
  MutexLock lock(&mu_);
  return members_;
}
void PendingCollective::Finish(const absl::Status& status, uint32_t members) {
  MutexLock lock(&mu_);
  RECON_CHECK(!done_, "a call is done twice");
  done_ = true;
  status_ = status;
  members_ = members;
}

// The stream to one server. The group owns it and outlives it: OnDone() is gRPC's last word of it.
class Group::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(Group* group, std::string address, size_t server, std::shared_ptr<grpc::Channel> channel)
      : group_(group),
        address_(std::move(address)),
        server_(server),
        channel_(std::move(channel)),
        stub_(channel_) {}

  void Start() {
    // A server that is about to start is waited for; who joins says for how long.
    shown_ = group_->introduction_->AddTo(&context_);
    context_.set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(&context_, "/recon.Collective/Exchange", grpc::StubOptions(), this);
    AddHold();  // Writes are started outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }
  void Write(const CallFrame& frame) {
    grpc::ByteBuffer message = BufferOf(EncodeCallFrame(frame));
    MutexLock lock(&mu_);
    if (ended_ || finishing_) return;
    outgoing_.emplace_back().Swap(&message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  // Ends it when all is written.
  void Finish() {
    {
      MutexLock lock(&mu_);
      if (ended_ || finishing_) return;
      finishing_ = true;
      if (!outgoing_.empty()) return;
    }
    EndWrites();
  }
  void Cancel() {
    context_.TryCancel();
    End();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    absl::StatusOr<ByteChain> bytes = ChainOf(&incoming_);
    const absl::StatusOr<CallFrame> frame = bytes.ok() ? DecodeCallFrame(*bytes) : bytes.status();
    if (!frame.ok()) return Cancel();
    group_->OnFrame(server_, *frame);
    StartRead(&incoming_);  // Only now: frames are handled in their order.
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End();
    {
      MutexLock lock(&mu_);
      RECON_CHECK(!outgoing_.empty());
      outgoing_.pop_front();
      if (ended_) return;
      if (!outgoing_.empty()) return StartWrite(&outgoing_.front());
      if (!finishing_) return;
    }
    EndWrites();
  }
  void OnDone(const grpc::Status& status) override {
    ended_with_ = status;
    group_->OnStreamEnded(this, address_,
                          status.ok() ? absl::UnavailableError("the server ended it") : FromGrpc(status));
  }
  // After its end: whether it was denied, and there is a token now to begin another one with.
  bool FindsToken() { return group_->introduction_->FindsAnother(shown_, ended_with_, context_); }

 private:
  void EndWrites() {
    StartWritesDone();
    End();
  }
  void End() {
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
    }
    RemoveHold();
  }

  Group* const group_;
  const std::string address_;
  const size_t server_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::string shown_;  // Of the tokens.
  grpc::Status ended_with_;

  Mutex mu_ ABSL_ACQUIRED_AFTER(group_->mu_);
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

Group::Group(const Options& options)
    : options_(options), core_(MemberCore::Options{options.set, options.member, options.shrink}) {}

absl::StatusOr<std::unique_ptr<Group>> Group::Join(const Options& options) {
  std::unique_ptr<Group> group(new Group(options));
  RECON_ASSIGN_OR_RETURN(Caller caller, CallerFor(options.tls));
  group->introduction_ = std::make_unique<Introduction>(std::move(caller));
  RECON_ASSIGN_OR_RETURN(group->head_, ConnectTo(options.server, options.tls, NextConnection()));
  JoinRequest request;
  request.set_set(options.set);
  request.set_member(options.member);
  request.set_elastic(options.elastic);
  request.set_rank(options.rank);
  request.set_size(options.size);
  request.set_shrink(options.shrink);
  request.set_patience_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options.patience)));
  CallFrame join;
  join.header.kind = CallFrameKind::kJoin;
  join.payload = ByteChain::FromString(request.SerializeAsString());
  // Before the stream, which rings it where it is denied.
  group->heart_ = std::make_unique<Alarm>([it = group.get()] { it->Beat(); });
  {
    MutexLock lock(&group->mu_);
    group->join_ = join;
    group->OpenStream(0);
    group->streams_[0]->Write(join);
    group->heart_->Set(Now() + limits::kCollectiveHeartbeat);
  }
  return group;
}

Group::~Group() {
  Leave("it left");
  std::vector<std::unique_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return live_streams_ == 0; };
    if (!mu_.AwaitFor(kFarewell, ended)) CancelAll();
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return live_streams_ == 0; });
    streams.swap(streams_);
  }
  heart_ = nullptr;
}

void Group::OpenStream(size_t server) {
  if (streams_.size() <= server) streams_.resize(server + 1);
  if (streams_[server] != nullptr || !broken_.ok()) return;
  const std::string address = server == 0 ? options_.server : core_.servers()[server];
  std::shared_ptr<grpc::Channel> channel = head_;
  if (server > 0) {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> made = ConnectTo(address, options_.tls, NextConnection());
    if (!made.ok()) return Break(made.status());
    channel = *std::move(made);
  }
  streams_[server] = std::make_unique<Stream>(this, address, server, std::move(channel));
  ++live_streams_;
  ++open_streams_;
  streams_[server]->Start();
}

std::vector<MemberCore::Finished> Group::Flush() {
  for (const MemberCore::Out& out : core_.TakeOutgoing()) {
    OpenStream(out.server);
    if (!broken_.ok()) break;
    RECON_CHECK(streams_[out.server] != nullptr);
    streams_[out.server]->Write(out.frame);
  }
  return core_.TakeFinished();
}

void Group::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  broken_ = why;
  CancelAll();
}

void Group::CancelAll() {
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->Cancel();
  }
}

void Group::OnFrame(size_t server, const CallFrame& frame) {
  std::vector<MemberCore::Finished> finished;
  {
    MutexLock lock(&mu_);
    if (!broken_.ok()) return;
    core_.OnFrame(server, frame);
    finished = Flush();
  }
  for (const MemberCore::Finished& call : finished) call.done(call.status, call.members);
}

void Group::OnStreamEnded(Stream* stream, const std::string& address, const absl::Status& why) {
  if (absl::IsPermissionDenied(why)) {
    MutexLock lock(&mu_);
    if (stream == streams_[0].get() && broken_.ok()) {
      denied_ = stream;
      why_denied_ = why;
      heart_->Set(Now());  // Not on this thread: files are read.
      return;
    }
  }
  EndStream(address, why);
}

void Group::LookForToken() {
  Stream* denied = nullptr;
  absl::Status why;
  {
    MutexLock lock(&mu_);
    denied = std::exchange(denied_, nullptr);
    why = why_denied_;
  }
  if (denied == nullptr) return;
  if (denied->FindsToken()) {
    MutexLock lock(&mu_);
    if (broken_.ok()) {
      retired_ = std::move(streams_[0]);
      --live_streams_;
      --open_streams_;
      OpenStream(0);
      streams_[0]->Write(join_);
      return;
    }
  }
  EndStream(options_.server, why);
}

void Group::EndStream(const std::string& address, const absl::Status& why) {
  std::vector<MemberCore::Finished> finished;
  {
    MutexLock lock(&mu_);
    Break(absl::Status(why.code(), absl::StrCat("set '", options_.set, "': the connection to ", address,
                                                " ended: ", why.message())));
    // Only now nothing refers to callers' memory.
    RECON_CHECK_GT(open_streams_, 0, "a stream ends twice");
    if (--open_streams_ == 0) core_.OnBroken(broken_);
    finished = core_.TakeFinished();
  }
  for (const MemberCore::Finished& call : finished) call.done(call.status, call.members);
  MutexLock lock(&mu_);
  RECON_CHECK_GT(live_streams_, 0);
  --live_streams_;  // The last one lets the destructor go on.
}

absl::StatusOr<std::shared_ptr<PendingCollective>> Group::Start(const CallSpec& spec) {
  auto pending = std::make_shared<PendingCollective>();
  std::vector<MemberCore::Finished> finished;
  absl::Status submitted;
  {
    MutexLock lock(&mu_);
    RECON_RETURN_IF_ERROR(broken_);
    const int64_t begun_ns = trace::On() ? MonotonicNanos() : 0;
    submitted = core_.Submit(
        spec, [pending, begun_ns, kind = spec.kind](const absl::Status& status, uint32_t members) {
          if (begun_ns != 0) trace::RecordPassive(CallKindName(kind), begun_ns, {});
          pending->Finish(status, members);
        });
    finished = Flush();
  }
  for (const MemberCore::Finished& call : finished) call.done(call.status, call.members);
  RECON_RETURN_IF_ERROR(submitted);
  return pending;
}

bool Group::AwaitBegunFor(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return core_.epoch() != nullptr || !broken_.ok();
  });
}

absl::Status Group::status() {
  MutexLock lock(&mu_);
  return broken_;
}

absl::StatusOr<SetEpoch> Group::Acknowledge() {
  MutexLock lock(&mu_);
  RECON_RETURN_IF_ERROR(broken_);
  const SetEpoch* epoch = core_.Acknowledge();
  if (epoch == nullptr) return absl::UnavailableError(absl::StrCat("set '", options_.set, "' has not begun"));
  return *epoch;
}

std::optional<SetEpoch> Group::epoch() {
  MutexLock lock(&mu_);
  if (core_.epoch() == nullptr) return std::nullopt;
  return *core_.epoch();
}

bool Group::changed() {
  MutexLock lock(&mu_);
  return core_.changed();
}

std::vector<uint32_t> Group::lost() {
  MutexLock lock(&mu_);
  return core_.lost();
}

void Group::Leave(const std::string& why) {
  MutexLock lock(&mu_);
  if (!broken_.ok()) return;
  broken_ = absl::CancelledError(absl::StrCat("set '", options_.set, "': this process has left it: ", why));
  CallFrame leave;
  leave.header.kind = CallFrameKind::kLeave;
  leave.text = why;
  if (!streams_.empty()) streams_[0]->Write(leave);
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->Finish();
  }
}

void Group::Beat() {
  LookForToken();
  CallFrame beat;
  beat.header.kind = CallFrameKind::kHeartbeat;
  MutexLock lock(&mu_);
  if (!broken_.ok()) return;
  streams_[0]->Write(beat);
  if (denied_ == nullptr) heart_->Set(Now() + limits::kCollectiveHeartbeat);
}

absl::StatusOr<SetsReply> Group::Sets() { return AskForSets(head_, introduction_.get()); }

std::string Group::WhoIsMissing() {
  const absl::StatusOr<SetsReply> sets = Sets();
  if (!sets.ok())
    return absl::StrCat("the server at ", options_.server, " does not answer: ", sets.status().message());
  for (const SetStatus& set : sets->sets()) {
    if (set.name() != options_.set) continue;
    if (set.epoch() == 0) {
      const auto name = [](std::string* out, const SetMember& member) {
        absl::StrAppend(out, member.name());
      };
      return absl::StrCat("set '", set.name(), "' waits for ", set.size(), " members, there are ",
                          set.waiting_size(), ": ", absl::StrJoin(set.waiting(), ", ", name));
    }
    if (set.calls_size() == 0)
      return absl::StrCat("set '", set.name(), "' has no call that waits for a member");
    return WaitingCalls(set);
  }
  return absl::StrCat("the server at ", options_.server, " has no set '", options_.set, "'");
}

}  // namespace recon
