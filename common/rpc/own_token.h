#pragma once

#include <string>

#include "grpcpp/client_context.h"

namespace recon {

// After a call that was denied: the token that the head has made for itself, if the head is on this machine,
// says where that is, and we own the file; else nothing. Reads two small files.
//
// Another process on the head's port is told nothing: the address beside the token must be the port that was
// called.
std::string OwnTokenOf(const grpc::ClientContext& context);

}  // namespace recon
