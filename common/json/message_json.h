#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace recon {

// A protobuf message as JSON, all fields present but those that are optional and absent, names as in the
// .proto file, enums by their names. Numbers are numbers, of 64 bits, too, which protobuf's own JSON writes
// as strings; what is no number (NaN, infinity) is null.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace recon
