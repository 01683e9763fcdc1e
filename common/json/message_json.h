#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"

namespace recon {

// A line of JSON without its end, in UTF-8. Characters that are not plain (common/base/plain_text.h) are
// escaped as JSON has it, so that a terminal shows it as it is; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json);

// A protobuf message as JSON, all fields present but those that are optional and absent, names as in the
// .proto file, enums by their names. Numbers are numbers, of 64 bits, too, which protobuf's own JSON writes
// as strings; what is no number (NaN, infinity) is null.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace recon
