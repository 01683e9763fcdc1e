#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/byte_chain.h"
#include "common/base/limits.h"
#include "common/transport/envelope.h"
#include "common/transport/requests_in_flight.h"

namespace recon {

// The requests of one connection: those that wait, since more than limits::kRequestBytesInFlight would be
// under way with them, and what is under way. Not thread-safe.
class CallWindow {
 public:
  void Add(uint64_t call, ByteChain message) { waiting_.emplace_back(call, std::move(message)); }

  // The next message, if it may be sent now.
  std::optional<ByteChain> Next() {
    if (waiting_.empty()) return std::nullopt;
    auto& [call, message] = waiting_.front();
    const size_t charge = RequestCharge(message.size());
    if (!in_flight_.MayAdd(charge)) return std::nullopt;
    in_flight_.Add(call, charge);
    ByteChain next = std::move(message);
    waiting_.pop_front();
    return next;
  }

  // It was taken or answered.
  void Remove(uint64_t call) { in_flight_.Remove(call); }

  // It is not sent, if it waits still.
  void Abandon(uint64_t call) {
    const auto is_call = [call](const auto& message) { return message.first == call; };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_call), waiting_.end());
  }

 private:
  RequestsInFlight in_flight_{limits::kRequestBytesInFlight};
  std::deque<std::pair<uint64_t, ByteChain>> waiting_;
};

}  // namespace recon
