#include <algorithm>

#include "catch2/catch.hpp"
#include "common/codec/sparse_codec.h"
#include "tests/server/store/shard_pushes.h"

namespace recon {
namespace {

OptimizerConfig Mean() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kMean;
  return config;
}

Shard MeanShard(uint32_t kept, bool averaged = false) {
  GroupPolicy policy;
  policy.averaged = averaged;
  Shard shard(ShardId(0), {0, 0, kSize}, 0, Mean(), policy);
  shard.means()->Reset(kept);
  return shard;
}

std::vector<float> MeanOf(Shard* shard, uint64_t step) {
  StepMeans::Encoded mean;
  REQUIRE(shard->means()->Encode(step, CodecId::kFp32, &mean) == StepMeans::Is::kHere);
  REQUIRE(mean.codec == CodecId::kFp32);
  const std::string bytes = mean.payload.ToString();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

EncodedGradient Sparse(const std::vector<uint16_t>& indices, const std::vector<float>& values) {
  SparseWriter writer(CodecId::kSparseFp32);
  writer.AddPage(kPageParams, indices, values.data());
  writer.AddPage(kSize - kPageParams, {}, nullptr);
  return {CodecId::kSparseFp32, kSize, ByteChain::FromString(writer.Finish())};
}

}  // namespace

TEST_CASE("closing a step leaves the mean by samples in place of the values", "[shard][mean]") {
  Shard shard = MeanShard(4);
  CHECK(shard.Contribute(Push(1, 0), From(0, 3, Gradient(CodecId::kFp32, 1))) == Shard::Outcome::kTaken);
  CHECK(shard.Contribute(Push(2, 0), From(3, 1, Gradient(CodecId::kFp16, 5))) == Shard::Outcome::kTaken);
  shard.CloseStep(0, {By(1), By(2)});
  CHECK(shard.version() == 1);
  CHECK(MeanOf(&shard, 0) == std::vector<float>(kSize, 2));
  // The next one takes its place: nothing is left of the first.
  CHECK(shard.Contribute(Push(1, 1), From(4, 3, Gradient(CodecId::kFp32, 0.1f))) == Shard::Outcome::kTaken);
  shard.CloseStep(1, {By(1)});
  CHECK(Values(&shard) == std::vector<float>(kSize, 0.1f));
  CHECK(MeanOf(&shard, 0) == std::vector<float>(kSize, 2));
}

TEST_CASE("a mean knows how many pushes it is of, also where the server was away", "[shard][mean]") {
  Shard shard = MeanShard(2);
  const auto pushes_of = [&shard](uint64_t step) {
    StepMeans::Encoded mean;
    REQUIRE(shard.means()->Encode(step, CodecId::kFp32, &mean) == StepMeans::Is::kHere);
    return mean.pushes;
  };
  shard.Contribute(Push(1, 0), From(0, 3, Gradient(CodecId::kFp32, 1)));
  shard.Contribute(Push(2, 0), From(3, 1, Gradient(CodecId::kFp32, 5)));
  shard.CloseStep(0, {By(1), By(2)});
  shard.Contribute(Push(1, 1), From(4, 3, Gradient(CodecId::kFp32, 1)));
  shard.CloseStep(1, {By(1)});
  CHECK(pushes_of(0) == 2);
  CHECK(pushes_of(1) == 1);
  shard.Restore(shard.Cut());
  CHECK(pushes_of(1) == 1);
}

TEST_CASE("a mean that is mostly zeros goes back sparse, and has only the values of its step",
          "[shard][mean]") {
  Shard shard = MeanShard(4);
  shard.Contribute(Push(1, 0), From(0, 1, Sparse({3, 9}, {8, 4})));
  shard.Contribute(Push(2, 0), From(1, 1, Sparse({9, 70}, {2, 6})));
  shard.CloseStep(0, {By(1), By(2)});
  shard.Contribute(Push(1, 1), From(2, 1, Sparse({5}, {1})));
  shard.CloseStep(1, {By(1)});
  for (const uint64_t step : {0, 1}) {
    StepMeans::Encoded mean;
    REQUIRE(shard.means()->Encode(step, CodecId::kFp32, &mean) == StepMeans::Is::kHere);
    CHECK(mean.codec == CodecId::kSparseFp32);
    CHECK(mean.payload.size() < 100);
    std::vector<std::pair<uint16_t, float>> named;
    CHECK(ForEachSparsePage(mean.codec, kSize, mean.payload, [&](const SparsePage& page) {
            for (size_t i = 0; i < page.indices.size(); ++i)
              named.push_back({page.indices[i], page.values[i]});
          }).ok());
    using Named = std::vector<std::pair<uint16_t, float>>;
    CHECK(named == (step == 0 ? Named{{3, 4}, {9, 3}, {70, 3}} : Named{{5, 1}}));
  }
}

TEST_CASE("of averaged values the first contribution in the order of samples counts, as it is",
          "[shard][mean]") {
  Shard shard = MeanShard(4, /*averaged=*/true);
  shard.Contribute(Push(1, 0), From(50, 3, Gradient(CodecId::kFp32, 1.1f)));
  shard.Contribute(Push(2, 0), From(0, 7, Gradient(CodecId::kFp32, 0.3f)));
  shard.CloseStep(0, {By(1), By(2)});
  CHECK(MeanOf(&shard, 0) == std::vector<float>(kSize, 0.3f));
}

TEST_CASE("a step's mean is not there before it is closed, nor once newer ones have taken its place",
          "[shard][mean]") {
  Shard shard = MeanShard(2);
  StepMeans::Encoded mean;
  CHECK(shard.means()->Encode(0, CodecId::kFp32, &mean) == StepMeans::Is::kOpen);
  for (uint64_t step = 0; step < 3; ++step) {
    shard.Contribute(Push(1, step), From(step, 1, Gradient(CodecId::kFp32, static_cast<float>(step + 1))));
    shard.CloseStep(step, {By(1)});
  }
  CHECK(shard.means()->Encode(0, CodecId::kFp32, &mean) == StepMeans::Is::kGone);
  CHECK(shard.means()->Encode(3, CodecId::kFp32, &mean) == StepMeans::Is::kOpen);
  CHECK(MeanOf(&shard, 1)[0] == 2);
  CHECK(MeanOf(&shard, 2)[kSize - 1] == 3);
  // A server that comes back has the last one.
  Shard again = MeanShard(2);
  again.Restore(shard.Cut());
  CHECK(MeanOf(&again, 2) == std::vector<float>(kSize, 3));
  CHECK(again.means()->Encode(1, CodecId::kFp32, &mean) == StepMeans::Is::kGone);
}

TEST_CASE("a mean in 16 bits is encoded once for all that ask while one of them has it", "[shard][mean]") {
  Shard shard = MeanShard(2);
  shard.Contribute(Push(1, 0), From(0, 1, Gradient(CodecId::kFp32, 2)));
  shard.CloseStep(0, {By(1)});
  StepMeans::Encoded one, two;
  REQUIRE(shard.means()->Encode(0, CodecId::kBf16, &one) == StepMeans::Is::kHere);
  REQUIRE(shard.means()->Encode(0, CodecId::kBf16, &two) == StepMeans::Is::kHere);
  CHECK(one.codec == CodecId::kBf16);
  CHECK(one.payload.pieces().front().data == two.payload.pieces().front().data);
}

TEST_CASE("pages take the place of the parameters as a version that they bring", "[shard][mean]") {
  Shard shard = MeanShard(0);
  shard.SetInitialValues(Gradient(CodecId::kFp32, 7));
  Shard other = MeanShard(0);
  other.SetInitialValues(Gradient(CodecId::kFp32, 8));
  const ShardCut before = shard.Cut();
  shard.Replace(other.Cut().pages[0], 9);
  CHECK(Values(&shard) == std::vector<float>(kSize, 8));
  CHECK(shard.version() == 9);
  CHECK(before.pages[0][0].data()[0] == 7);
}

}  // namespace recon
