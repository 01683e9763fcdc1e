#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/rpc/credentials.h"
#include "common/tensor/param_layout.h"
#include "worker/comm/comm_pipeline.h"
#include "worker/comm/replica.h"
#include "worker/comm/session.h"

namespace recon {

// Where a worker that joins takes the parameters from.
enum class ParameterSource {
  kServer,
  kStore,    // The newest snapshot; the server says what has changed since, by versions.
  kWorkers,  // Those that hand out theirs; the server says which pages are not right, by their hashes.
};

// Pulls all parameters from the servers. Blocks; the replica's thread. Errors are CommPipeline::PullAll()'s,
// or Replica::Adopt()'s.
absl::Status PullParameters(CommPipeline* pipeline, Replica* replica);

// Fills `replica`, from the servers alone where the source has nothing, or fails. Blocks; the replica's
// thread. Errors are PullParameters()'. Other workers are not waited for any more once `stopped` says so.
absl::Status Reconstruct(ParameterSource source, const TlsFlags& tls, const ParamLayout& layout,
                         const Session& session, const std::function<bool()>& stopped, CommPipeline* pipeline,
                         Replica* replica);

}  // namespace recon
