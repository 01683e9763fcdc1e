#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/codec/selection.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"

// Any bytes as a sparse payload: byte 0 picks the codec and how the payload is cut into slices, bytes 1 to 3
// are the shard's number of values and the part's exponent. What is accepted must lie within the shard, and
// must survive being written and read again.
namespace {

struct Content {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

bool Read(recon::CodecId codec, uint32_t count, const recon::ByteChain& payload, int exponent,
          Content* content) {
  return recon::ForEachSparsePage(
             codec, count, payload,
             [&](const recon::SparsePage& page) {
               if (page.values.size() != (page.all ? page.page_size : page.indices.size())) std::abort();
               for (size_t i = 0; i < page.values.size(); ++i) {
                 const size_t index = page.all ? i : page.indices[i];
                 if (index >= page.page_size) std::abort();
                 content->indices.push_back(page.page * static_cast<uint32_t>(recon::kPageParams) +
                                            static_cast<uint32_t>(index));
                 content->values.push_back(page.values[i]);
               }
             },
             exponent)
      .ok();
}

std::string WriteAgain(recon::CodecId codec, uint32_t count, int exponent, const Content& content) {
  recon::SparseWriter writer(codec);
  std::vector<float> values = content.values;
  for (float& value : values) value *= recon::PowerOfTwo(-exponent);
  size_t at = 0;
  for (uint32_t page = 0; page < recon::PagesOf(count); ++page) {
    const size_t begin = size_t{page} * recon::kPageParams;
    const size_t size = std::min(count - begin, recon::kPageParams);
    std::vector<uint16_t> indices;
    const size_t first = at;
    for (; at < content.indices.size() && content.indices[at] < begin + size; ++at) {
      indices.push_back(static_cast<uint16_t>(content.indices[at] - begin));
    }
    writer.AddPage(static_cast<uint32_t>(size), indices, values.data() + first);
  }
  return writer.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const auto codec = static_cast<recon::CodecId>(4 + data[0] % 3);
  const uint32_t count = data[1] | data[2] << 8 | (data[3] & 7) << 16;
  const size_t slice = 1 + data[0] / 3;
  const bool halves = codec == recon::CodecId::kSparseFp16;
  const int exponent = halves ? std::min((data[3] >> 3) * 8 + recon::kExponentMin, recon::kExponentMax) : 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 4, size - 4);
  if (count == 0 || !recon::CheckPayloadBytes(codec, count, bytes.size()).ok()) return 0;
  recon::ByteChain payload;
  for (size_t at = 0; at < bytes.size(); at += slice) {
    payload.Append(recon::ByteChain::FromString(bytes.substr(at, slice)));
  }
  Content content;
  if (!Read(codec, count, payload, exponent, &content)) return 0;
  const std::string again = WriteAgain(codec, count, exponent, content);
  Content second;
  if (again.size() > bytes.size()) std::abort();
  if (!Read(codec, count, recon::ByteChain::FromString(again), exponent, &second)) std::abort();
  if (second.indices != content.indices) std::abort();
  if (content.values.empty()) return 0;
  if (std::memcmp(second.values.data(), content.values.data(), content.values.size() * sizeof(float)) != 0) {
    std::abort();
  }
  return 0;
}
