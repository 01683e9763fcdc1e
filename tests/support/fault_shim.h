#pragma once

#include <atomic>
#include <cstdint>

namespace recon {

// Asks for a short read or write in place of an error.
inline constexpr int kFaultShort = -1;

// What a test and the library fault_shim share, in a file that both map. Zeros: nothing fails.
struct FaultState {
  std::atomic<uint64_t> calls;       // Counted so far.
  std::atomic<uint64_t> fail_from;   // The first call that fails, from 1; 0: none does.
  std::atomic<uint64_t> fail_calls;  // So many in a row.
  std::atomic<int> error;            // An errno, or kFaultShort.
  char failed[64];                   // The name of the first that failed.
};

}  // namespace recon
