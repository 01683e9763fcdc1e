#include "common/codec/page_hash.h"

#include "common/base/hash.h"
#include "common/tensor/page.h"

namespace recon {

std::string PageHash(CodecId codec, const float* values, size_t count) {
  if (codec == CodecId::kFp32) return Hash128(values, count * sizeof(float));
  alignas(64) uint8_t encoded[kPageParams * sizeof(uint16_t)];
  Encode(codec, values, count, encoded);
  return Hash128(encoded, EncodedBytes(codec, count));
}

}  // namespace recon
