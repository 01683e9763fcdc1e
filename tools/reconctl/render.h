#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace recon {

// Columns aligned to their widest cell; the first row is the heading.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// A protobuf message as JSON, all fields present, names as in the .proto file; 64-bit numbers are strings
// there by protobuf's rules.
std::string ToJson(const google::protobuf::Message& message);

// "1.9 MB", "12.3k", "2026-03-01 12:00:05".
std::string HumanBytes(uint64_t bytes);
std::string HumanCount(double count);
std::string HumanTime(int64_t unix_ms);
std::string HumanSeconds(double seconds);

// "[=====>    ]" of `width` cells.
std::string Bar(double fraction, int width);

}  // namespace recon
