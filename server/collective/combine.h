#pragma once

#include <vector>

#include "common/base/byte_chain.h"
#include "common/collective/call_frame.h"

namespace recon {

// The result of a chunk from what its sources have sent, by place; empty for those that are no sources.
// `chunk` has been checked (DecodeCallFrame()), and each contribution has chunk.bytes.
//
// Sums go in the order of places: the same bits whoever came first. Values of 16 bits are summed in FP32 and
// rounded once. NaNs go through minima and maxima, integers wrap, of bool a sum is "or" and a product "and".
// A mean divides by how many there are. Pure, thread-safe.
ByteChain CombineChunk(const CallHeader& chunk, const std::vector<ByteChain>& contributions);

}  // namespace recon
