#pragma once

#include <memory>
#include <utility>

#include "common/rpc/connections.h"
#include "grpcpp/support/server_callback.h"

namespace recon {

// A call that is open, as its connection counts it, for as long as this lives. Null: nobody counts.
class OpenCall {
 public:
  explicit OpenCall(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {
    if (connection_ != nullptr) connection_->NoteCallBegun();
  }
  ~OpenCall() {
    if (connection_ != nullptr) connection_->NoteCallEnded();
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

 private:
  const std::shared_ptr<Connection> connection_;
};

// Of a call with one reply, which is open until that has been sent. Deletes itself then.
class CountedReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit CountedReactor(std::shared_ptr<Connection> connection) : call_(std::move(connection)) {}
  void OnDone() override { delete this; }

 private:
  const OpenCall call_;
};

}  // namespace recon
