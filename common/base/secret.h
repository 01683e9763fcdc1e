#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace recon {

// Random bytes from the operating system.
std::string DrawSecret(size_t bytes);

// Whether they are equal. It takes as long wherever they differ.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace recon
