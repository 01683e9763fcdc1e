#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "proto/control.pb.h"

namespace recon {

// InvalidArgument, with all differences, if the worker's script has other settings than the job: `settings`
// has the job's by flag, "--batch"; of others nothing is asked. Pure.
absl::Status CheckProposal(const RegisterRequest& request,
                           const std::map<std::string, std::string>& settings);

}  // namespace recon
