#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/human_bytes.h"

namespace recon {

// Columns aligned to their widest cell; the first row is the heading. What cells have that is not plain
// (common/base/plain_text.h) is escaped.
std::string Table(std::vector<std::vector<std::string>> rows);

// "12.3k", "2026-03-01 12:00:05", "12 min".
std::string HumanCount(double count);
std::string HumanTime(int64_t unix_ms);
std::string HumanSeconds(double seconds);

// "[=====>    ]" of `width` cells.
std::string Bar(double fraction, int width);

}  // namespace recon
