#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {

// What a pull says of the values that its sender has already, page by page (FORMAT.md).

inline constexpr size_t kPageHashBytes = 16;

// Of all pages of a shard of `count` values.
constexpr uint64_t PageHashesBytes(uint32_t count) { return uint64_t{PagesOf(count)} * kPageHashBytes; }

// XXH3-128, canonical, of a page's values (65,536 at most) as `codec` (fp32, fp16 or bf16) encodes them.
// Values that were rounded to it once have the hash of those they were rounded from.
std::string PageHash(CodecId codec, const float* values, size_t count);

}  // namespace recon
