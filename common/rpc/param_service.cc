#include "common/rpc/param_service.h"

#include "common/rpc/exchange_stream.h"

namespace recon {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ParamService::Exchange(
    grpc::CallbackServerContext* /*context*/) {
  const auto stream = std::make_shared<ExchangeStream>(this);
  bool closed;
  {
    MutexLock lock(&mu_);
    closed = closed_;
    streams_.insert(stream.get());
  }
  stream->Start();
  if (closed) stream->Close(absl::UnavailableError("the server is draining"));
  return stream.get();
}

void ParamService::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  // None of them is forgotten, and so destroyed, meanwhile.
  for (ExchangeStream* stream : streams_) stream->Close(absl::UnavailableError("the server is draining"));
}

void ParamService::Forget(ExchangeStream* stream) {
  MutexLock lock(&mu_);
  streams_.erase(stream);
}

}  // namespace recon
