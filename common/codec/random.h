#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define RECON_HOST_DEVICE __host__ __device__
#else
#define RECON_HOST_DEVICE
#endif

namespace recon {

// MurmurHash3's 32-bit finalizer over a counter: the random numbers of randomk and of int8's rounding. The
// same on CPU and GPU, and for one index whatever order indices come in.
RECON_HOST_DEVICE inline uint32_t HashIndex(uint32_t seed, uint32_t index) {
  uint32_t h = seed + index * 0x9E3779B9u;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return h;
}

}  // namespace recon
