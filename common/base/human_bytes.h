#pragma once

#include <cstdint>
#include <string>

namespace recon {

// "512 B", "8.1 kB", "1.9 MB", "2.50 GB": bytes in the unit that fits, powers of ten.
std::string HumanBytes(uint64_t bytes);

}  // namespace recon
