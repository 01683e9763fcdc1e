#pragma once

#include <string>

#include "common/tensor/param_layout.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// What people are told of the shard of which most values were cut or became 0, with the names of its tensors
// and what to do. Empty if no shard lost more than one value in a thousand. Pure.
std::string DescribeLost(const ParamLayout& layout, const EncodedPush& push);

}  // namespace recon
