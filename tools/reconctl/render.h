#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/human_bytes.h"
#include "google/protobuf/message.h"

namespace recon {

// Columns aligned to their widest cell; the first row is the heading.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// A protobuf message as JSON, all fields present but those that are optional and absent, names as in the
// .proto file, enums by their names. Numbers are numbers, of 64 bits, too, which protobuf's own JSON writes
// as strings; what is no number (NaN, infinity) is null.
std::string ToJson(const google::protobuf::Message& message);

// "12.3k", "2026-03-01 12:00:05", "12 min".
std::string HumanCount(double count);
std::string HumanTime(int64_t unix_ms);
std::string HumanSeconds(double seconds);

// "[=====>    ]" of `width` cells.
std::string Bar(double fraction, int width);

}  // namespace recon
