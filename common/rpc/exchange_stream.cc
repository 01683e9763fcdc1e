#include "common/rpc/exchange_stream.h"

#include <utility>

#include "common/base/away_words.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"
#include "common/transport/envelope.h"

namespace recon {

void ExchangeStream::Start(const absl::Status& admitted) {
  self_ = shared_from_this();
  MutexLock lock(&mu_);
  if (admitted.ok()) return ReadOn();
  closing_ = admitted;
  FinishIfIdle();
}

void ExchangeStream::Close(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (closing_.has_value()) return;
  closing_ = status;
  FinishIfIdle();
}

void ExchangeStream::ReadOn() {
  if (reading_ || no_more_reads_ || closing_.has_value() || bytes_held_ > limits::kStreamBytesInFlightMax) {
    return;
  }
  reading_ = true;
  StartRead(&incoming_);
}

void ExchangeStream::FinishIfIdle() {
  if (finished_ || !outgoing_.empty()) return;
  if (closing_.has_value()) {
    finished_ = true;
    Finish(ToGrpc(*closing_));
  } else if (no_more_reads_ && requests_ == 0) {
    finished_ = true;
    Finish(grpc::Status::OK);
  }
}

void ExchangeStream::OnReadDone(bool ok) {
  absl::StatusOr<ByteChain> bytes = ByteChain();
  const auto request = MakePooled<Request>();
  {
    MutexLock lock(&mu_);
    RECON_CHECK(reading_);
    reading_ = false;
    if (!ok) {
      no_more_reads_ = true;
      return FinishIfIdle();
    }
    if (closing_.has_value()) return;
    bytes = ChainOf(&incoming_);
    if (bytes.ok()) {
      request->charge = RequestCharge(bytes->size());
      bytes_held_ += request->charge;
      ++requests_;
    }
    ReadOn();  // The next message comes in while this one is checked.
  }
  auto unwrapped = bytes.ok() ? Unwrap(*bytes) : bytes.status();
  if (!unwrapped.ok()) return Close(unwrapped.status());
  NoteIfMember();  // The head may have told this server of it since.
  request->call = unwrapped->first.call;
  request->stream = shared_from_this();
  service_->handler_(
      unwrapped->second, [request] { request->stream->Taken(request.get()); },
      [request](const absl::StatusOr<ByteChain>& reply) { request->stream->Reply(request.get(), reply); },
      {sender_, nullptr, /*over_request=*/true, /*untouched=*/false});
}

void ExchangeStream::NoteIfMember() {
  if (connection_ == nullptr || connection_->member() || service_->is_member_ == nullptr) return;
  if (service_->is_member_(sender_)) connection_->NoteMember();
}

void ExchangeStream::Taken(Request* request) {
  if (connection_ != nullptr) connection_->NoteMember();
  grpc::ByteBuffer message = BufferOf(WrapTaken(request->call));
  MutexLock lock(&mu_);
  RECON_CHECK_GE(bytes_held_, request->charge);
  bytes_held_ -= std::exchange(request->charge, 0);
  Send(&message);
  ReadOn();
}

void ExchangeStream::Reply(Request* request, const absl::StatusOr<ByteChain>& reply) {
  if (connection_ != nullptr && reply.ok()) connection_->NoteMember();
  // Nobody can be a member there yet: whole requests are not held against who sends them.
  if (connection_ != nullptr && SaysNoPlace(reply.status())) connection_->NoteUnderstood();
  grpc::ByteBuffer message = BufferOf(WrapReply(request->call, reply));
  MutexLock lock(&mu_);
  RECON_CHECK(!std::exchange(request->answered, true), "a request is answered twice");
  RECON_CHECK_GT(requests_, 0);
  --requests_;
  RECON_CHECK_GE(bytes_held_, request->charge);
  bytes_held_ -= std::exchange(request->charge, 0);
  Send(&message);
  ReadOn();
  FinishIfIdle();
}

void ExchangeStream::Send(grpc::ByteBuffer* message) {
  if (finished_ || closing_.has_value()) return;
  bytes_held_ += message->Length();
  outgoing_.emplace_back().Swap(message);
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void ExchangeStream::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  RECON_CHECK(!outgoing_.empty());
  RECON_CHECK_GE(bytes_held_, outgoing_.front().Length());
  bytes_held_ -= outgoing_.front().Length();
  outgoing_.pop_front();
  if (!ok) {  // Nothing more can be written.
    outgoing_.clear();
    if (!closing_.has_value()) closing_ = absl::UnavailableError("the worker cannot be written to");
  } else if (!outgoing_.empty()) {
    StartWrite(&outgoing_.front());
  }
  ReadOn();
  FinishIfIdle();
}

void ExchangeStream::OnCancel() { Close(absl::CancelledError("the worker has gone")); }

void ExchangeStream::OnDone() {
  service_->Forget(this);
  self_.reset();
}

}  // namespace recon
