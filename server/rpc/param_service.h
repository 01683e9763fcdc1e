#pragma once

#include "proto/param.grpc.pb.h"
#include "server/param_server.h"

namespace recon {

// Param over gRPC's callback API with raw buffers: hands frames to the ParamServer, which must outlive it.
class ParamService
    : public Param::WithRawCallbackMethod_Pull<Param::WithRawCallbackMethod_Push<
          Param::WithRawCallbackMethod_PushPull<Param::WithRawCallbackMethod_Init<Param::Service>>>> {
 public:
  explicit ParamService(ParamServer* server) : server_(server) {}

  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* PushPull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Init(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* reply) override;

 private:
  grpc::ServerUnaryReactor* Handle(FrameKind kind, grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* reply);

  ParamServer* server_;
};

}  // namespace recon
