#include "common/rpc/param_service.h"

#include "common/base/away_words.h"
#include "common/base/check.h"
#include "common/rpc/exchange_stream.h"
#include "common/rpc/sender.h"

namespace recon {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ParamService::Exchange(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Incarnation> sender = SenderOf(*context);
  const auto stream = std::make_shared<ExchangeStream>(
      this, sender.value_or(Incarnation()),
      connections_ == nullptr ? nullptr : connections_->Find(PeerOf(*context)));
  stream->NoteIfMember();
  if (connected_ != nullptr) connected_->Opened(stream->sender());
  absl::Status admitted = sender.status();
  if (admitted.ok() && admit_ != nullptr) admitted = admit_(*context);
  {
    MutexLock lock(&mu_);
    if (closed_) admitted = DrainingError();
    const bool is_new = streams_.insert(stream.get()).second;
    RECON_CHECK(is_new);
  }
  stream->Start(admitted);
  return stream.get();
}

void ParamService::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  // None of them is forgotten, and so destroyed, meanwhile.
  for (ExchangeStream* stream : streams_) stream->Close(DrainingError());
}

void ParamService::Forget(ExchangeStream* stream) {
  if (connected_ != nullptr) connected_->Closed(stream->sender());
  MutexLock lock(&mu_);
  const size_t erased = streams_.erase(stream);
  RECON_CHECK_EQ(erased, 1, "a stream ends twice");
}

}  // namespace recon
