#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace recon {

// Whether EncodeValues() takes it.
bool CanEncode(absl::string_view dtype);
// FP32 values as those of another type, appended to `bytes`: the nearest, ties to even; integers and bools
// that do not reach so far are cut to the type's range. NaN is 0 there. CanEncode(dtype).
void EncodeValues(absl::string_view dtype, absl::Span<const float> values, std::string* bytes);

}  // namespace recon
