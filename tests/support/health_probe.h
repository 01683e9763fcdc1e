#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace recon {

// What gRPC's health service at `address` says of the whole process, by the bytes of its messages
// (grpc/health/v1/health.proto, which Debian does not install): "serving", "not serving", or the error.
inline std::string AskHealth(const std::string& address) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(WallNow() + absl::Seconds(5)));
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);  // Of the service "", as Kubernetes asks.
  grpc::ByteBuffer reply;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice slice;
  if (!reply.DumpToSingleSlice(&slice).ok()) return "no bytes";
  const absl::string_view bytes(reinterpret_cast<const char*>(slice.begin()), slice.size());
  // Field 1, an enumeration.
  return bytes == "\x08\x01" ? "serving" : bytes == "\x08\x02" ? "not serving" : "other bytes";
}

}  // namespace recon
