#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/codec/codec.h"
#include "server/store/gradient.h"

// Any bytes as an int8 payload: bytes 0 to 2 are the shard's number of values, the rest is the payload. What
// is accepted must decode to finite values, as many as the shard has.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const uint32_t count = data[0] | data[1] << 8 | (data[2] & 3) << 16;
  const std::string bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  if (count == 0 || !recon::CheckPayloadBytes(recon::CodecId::kInt8, count, bytes.size()).ok()) return 0;
  const recon::ByteChain payload = recon::ByteChain::FromString(bytes);
  if (!recon::CheckPayload(recon::CodecId::kInt8, count, payload).ok()) return 0;
  size_t seen = 0;
  recon::ForEachTile({recon::CodecId::kInt8, count, payload},
                     [&](size_t offset, absl::Span<const float> values) {
                       if (offset != seen) std::abort();
                       seen += values.size();
                       for (const float value : values) {
                         if (!std::isfinite(value)) std::abort();
                       }
                     });
  if (seen != count) std::abort();
  return 0;
}
