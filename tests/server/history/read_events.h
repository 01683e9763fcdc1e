#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "proto/history.pb.h"

namespace recon {

// The events of a file for TensorBoard.
inline std::vector<TensorBoardEvent> ReadEvents(const std::string& bytes) {
  std::vector<TensorBoardEvent> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    REQUIRE(at + 16 <= bytes.size());
    std::memcpy(&length, bytes.data() + at, sizeof length);
    REQUIRE(at + 16 + length <= bytes.size());
    REQUIRE(events.emplace_back().ParseFromString(bytes.substr(at + 12, length)));
    at += 16 + length;
  }
  return events;
}

}  // namespace recon
