#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/page_hash.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"
#include "tests/server/push_frames.h"

namespace recon {

TEST_CASE("a pull says the hashes of what it has, and only pages that differ are sent", "[param_server]") {
  ParamServerHarness f(/*bound=*/-1);
  constexpr size_t kSize = kPageParams + 100;
  ModelSpec model;
  model.set_name("two pages");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("w");
  tensor->add_shape(kSize);
  std::vector<float> values(kSize);
  for (size_t i = 0; i < kSize; ++i) values[i] = 1.0f / static_cast<float>(i + 3);
  f.Define(model, values);
  f.Join(1);
  REQUIRE(f.server().layout()->shard_count() == 1);
  // Values that were rounded once are not sent again for that.
  const CodecId codec = GENERATE(CodecId::kFp32, CodecId::kFp16, CodecId::kBf16);
  std::vector<float> had(kSize);
  std::vector<uint8_t> encoded(EncodedBytes(codec, kSize));
  Encode(codec, values.data(), kSize, encoded.data());
  Decode(codec, encoded.data(), kSize, had.data());
  const auto pull = [&] {
    std::string hashes;
    for (size_t at = 0; at < kSize; at += kPageParams) {
      hashes += PageHash(codec, had.data() + at, std::min(kPageParams, kSize - at));
    }
    Frame frame = f.MakeFrame(FrameKind::kPull, WorkerId(1), f.IncarnationOf(1), 0, {});
    frame.parts[0].codec = static_cast<uint8_t>(codec);
    frame.payloads[0] = ByteChain::FromString(hashes);
    const auto pending = f.Send(frame);
    pending->done.WaitForNotification();
    REQUIRE(pending->reply.ok());
    return *DecodeFrame(*pending->reply);
  };
  CHECK(pull().payloads[0].size() == 0);
  had[kPageParams + 7] += 1;
  const Frame one = pull();
  CHECK(static_cast<CodecId>(one.parts[0].codec) == CodecId::kSparseFp32);
  std::vector<uint32_t> pages;
  REQUIRE(ForEachSparsePage(CodecId::kSparseFp32, kSize, one.payloads[0], [&](const SparsePage& page) {
            pages.push_back(page.page);
            CHECK(page.all);
            CHECK(std::equal(page.values.begin(), page.values.end(), values.begin() + kPageParams));
          }).ok());
  CHECK(pages == std::vector<uint32_t>{1});
  had.assign(kSize, 7);
  const Frame all = pull();
  CHECK(static_cast<CodecId>(all.parts[0].codec) == CodecId::kFp32);
  CHECK(all.payloads[0].size() == kSize * sizeof(float));
}

}  // namespace recon
