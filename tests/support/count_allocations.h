#pragma once

#include <cstdint>

namespace recon {

// Calls of operator new in this program until now, by any thread. Linked into a program, it replaces the
// operator there: a file of its own, because compilers that see into both ends take malloc for a mistake.
uint64_t CountedAllocations();

}  // namespace recon
