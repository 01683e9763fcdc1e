#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/page_hash.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"
#include "server/store/shard.h"
#include "tests/server/data_plane/push_frames.h"

namespace recon {

namespace {

std::vector<float> SampleValues(size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = 1.0f / static_cast<float>(i + 3);
  return values;
}

std::string HashesOf(CodecId codec, const std::vector<float>& values, size_t begin, size_t end) {
  std::string hashes;
  for (size_t at = begin; at < end; at += kPageParams) {
    hashes += PageHash(codec, values.data() + at, std::min(kPageParams, end - at));
  }
  return hashes;
}

}  // namespace

TEST_CASE("a pull says the hashes of what it has, and only shards that differ are sent", "[param_server]") {
  ParamServerHarness f(/*bound=*/-1);
  constexpr size_t kSize = kPageParams + 100;
  ModelSpec model;
  model.set_name("two shards");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("w");
  tensor->add_shape(kSize);
  const std::vector<float> values = SampleValues(kSize);
  f.Define(model, values);
  f.Join(1);
  const auto layout = f.server().layout();
  REQUIRE(layout->shard_count() == 2);
  // Values that were rounded once are not sent again for that.
  const CodecId codec = GENERATE(CodecId::kFp32, CodecId::kFp16, CodecId::kBf16);
  std::vector<float> had(kSize);
  std::vector<uint8_t> encoded(EncodedBytes(codec, kSize));
  Encode(codec, values.data(), kSize, encoded.data());
  Decode(codec, encoded.data(), kSize, had.data());
  const auto pull = [&] {
    Frame frame = f.MakeFrame(FrameKind::kPull, WorkerId(1), f.IncarnationOf(1), 0, {});
    for (size_t i = 0; i < frame.parts.size(); ++i) {
      const ShardPlacement& shard = layout->shards()[i];
      frame.parts[i].codec = static_cast<uint8_t>(codec);
      frame.payloads[i] =
          ByteChain::FromString(HashesOf(codec, had, shard.offset, shard.offset + shard.size));
    }
    const auto pending = f.Send(frame);
    pending->done.WaitForNotification();
    REQUIRE(pending->reply.ok());
    return *DecodeFrame(*pending->reply);
  };
  for (const ByteChain& payload : pull().payloads) CHECK(payload.size() == 0);
  had[kPageParams + 7] += 1;
  const Frame one = pull();
  CHECK(one.payloads[0].size() == 0);
  CHECK(static_cast<CodecId>(one.parts[1].codec) == CodecId::kFp32);
  CHECK(one.payloads[1].size() == 100 * sizeof(float));
}

TEST_CASE("of a shard, pages are sent whose hashes are not those that are known", "[shard]") {
  constexpr uint32_t kSize = 2 * kPageParams + 100;
  const std::vector<float> values = SampleValues(kSize);
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  std::string bytes(EncodedBytes(CodecId::kFp32, kSize), '\0');
  Encode(CodecId::kFp32, values.data(), kSize, reinterpret_cast<uint8_t*>(bytes.data()));
  shard.SetInitialValues({CodecId::kFp32, kSize, ByteChain::FromString(bytes)});
  std::vector<float> had = values;
  const auto unlike = [&] {
    return shard.EncodedUnlike(CodecId::kFp32, CodecId::kFp32,
                               ByteChain::FromString(HashesOf(CodecId::kFp32, had, 0, kSize)));
  };
  CHECK(unlike().payload.size() == 0);
  had[kPageParams + 7] += 1;
  const Shard::Update one = unlike();
  CHECK(one.codec == CodecId::kSparseFp32);
  std::vector<uint32_t> pages;
  REQUIRE(ForEachSparsePage(CodecId::kSparseFp32, kSize, one.payload, [&](const SparsePage& page) {
            pages.push_back(page.page);
            CHECK(page.all);
            CHECK(std::equal(page.values.begin(), page.values.end(), values.begin() + kPageParams));
          }).ok());
  CHECK(pages == std::vector<uint32_t>{1});
  had.assign(kSize, 7);
  const Shard::Update all = unlike();
  CHECK(all.codec == CodecId::kFp32);
  CHECK(all.payload.size() == kSize * sizeof(float));
}

}  // namespace recon
