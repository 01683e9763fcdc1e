#include "server/rpc/head_link.h"

#include <utility>

#include "common/rpc/status_codes.h"

namespace recon {

GrpcHeadLink::GrpcHeadLink(const std::shared_ptr<grpc::Channel>& channel, Introduction* introduction)
    : introduction_(introduction), stub_(ShardServers::NewStub(channel)), writer_("to-head") {
  shown_ = introduction_->AddTo(&context_);
  stream_ = stub_->Serve(&context_);
}

void GrpcHeadLink::Send(ServerReport report) {
  // Of one that fails, Receive() tells.
  writer_.Post([this, report = std::move(report)] { stream_->Write(report); });
}

bool GrpcHeadLink::Receive(ServerCommand* command) { return stream_->Read(command); }

void GrpcHeadLink::Cancel() { context_.TryCancel(); }

absl::Status GrpcHeadLink::Finish() {
  writer_.RunAndWait([] {});
  const grpc::Status ended = stream_->Finish();
  found_token_ = introduction_->FindsAnother(shown_, ended, context_);
  return FromGrpc(ended);
}

}  // namespace recon
