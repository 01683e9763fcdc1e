#pragma once

#include <string>
#include <vector>

#include "server/process/server_flags.h"

namespace recon {

// What is allowed and is hardly meant: a text for each such flag, which begins with its name and says what
// comes of it, with numbers. Pure.
std::vector<std::string> FlagWarnings(const ServerFlags& flags);

}  // namespace recon
