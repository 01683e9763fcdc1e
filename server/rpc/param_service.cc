#include "server/rpc/param_service.h"

#include <utility>

#include "common/base/clock.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"

namespace recon {

grpc::ServerUnaryReactor* ParamService::Handle(FrameKind kind, grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<ByteChain> bytes = ChainOf(*request);
  if (!bytes.ok()) {
    reactor->Finish(ToGrpc(bytes.status()));
    return reactor;
  }
  server_->Handle(kind, *bytes, Now(), [reactor, reply](absl::StatusOr<ByteChain> result) {
    if (result.ok()) *reply = BufferOf(*result);
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ParamService::Pull(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Handle(FrameKind::kPull, context, request, reply);
}

grpc::ServerUnaryReactor* ParamService::Push(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Handle(FrameKind::kPush, context, request, reply);
}

grpc::ServerUnaryReactor* ParamService::PushPull(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Handle(FrameKind::kPushPull, context, request, reply);
}

grpc::ServerUnaryReactor* ParamService::Init(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  return Handle(FrameKind::kInit, context, request, reply);
}

}  // namespace recon
