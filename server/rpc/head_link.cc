#include "server/rpc/head_link.h"

#include <utility>

#include "common/rpc/status_codes.h"

namespace recon {

HeadLink::HeadLink(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller)
    : stub_(ShardServers::NewStub(channel)), writer_("to-head") {
  caller.AddTo(&context_);
  stream_ = stub_->Serve(&context_);
}

void HeadLink::Send(ServerReport report) {
  // Of one that fails, Receive() tells.
  writer_.Post([this, report = std::move(report)] { stream_->Write(report); });
}

bool HeadLink::Receive(ServerCommand* command) { return stream_->Read(command); }

void HeadLink::Cancel() { context_.TryCancel(); }

absl::Status HeadLink::Finish() {
  writer_.RunAndWait([] {});
  return FromGrpc(stream_->Finish());
}

}  // namespace recon
