#include <algorithm>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"
#include "server/store/shard.h"
#include "tests/server/store/shard_pushes.h"

namespace recon {
namespace {

// Gradient `value` for the named parameters of a shard of kSize.
EncodedGradient SparseGradient(const std::vector<std::vector<uint16_t>>& pages, float value,
                               CodecId codec = CodecId::kSparseFp16) {
  SparseWriter writer(codec);
  for (size_t page = 0; page < pages.size(); ++page) {
    const std::vector<float> values(pages[page].size(), value);
    writer.AddPage(page == 0 ? kPageParams : kSize - kPageParams, pages[page], values.data());
  }
  return {codec, kSize, ByteChain::FromString(writer.Finish())};
}

OptimizerConfig Adam() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdam;
  config.learning_rate = 0.1;
  config.weight_decay = 0.01;
  return config;
}

// What a reader that had `before` has after the update.
std::vector<float> Patched(std::vector<float> before, const Shard::Update& update) {
  if (!IsSparse(update.codec)) {
    std::vector<float> values(kSize);
    const std::string bytes = update.payload.ToString();
    Decode(update.codec, reinterpret_cast<const uint8_t*>(bytes.data()), kSize, values.data());
    return values;
  }
  REQUIRE(ForEachSparsePage(update.codec, kSize, update.payload, [&](const SparsePage& page) {
            float* values = before.data() + page.page * kPageParams;
            for (size_t i = 0; i < page.indices.size(); ++i) values[page.indices[i]] = page.values[i];
            if (page.all) std::copy(page.values.begin(), page.values.end(), values);
          }).ok());
  return before;
}

}  // namespace

TEST_CASE("a sparse push updates what it names as a dense one would, and nothing else", "[shard]") {
  const OptimizerConfig config = Adam();
  Shard sparse(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  Shard dense(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  const std::vector<float> start = Values(&sparse);
  const std::vector<std::vector<uint16_t>> named = {{0, 17, 4095, 4096, 65'535}, {0, 4999}};
  for (uint64_t step = 0; step < 3; ++step) {
    CHECK(sparse.Apply(Push(1, step), SparseGradient(named, 2.0f), 0.5) == Shard::Outcome::kTaken);
    CHECK(dense.Apply(Push(1, step), Gradient(CodecId::kFp32, 2.0f), 0.5) == Shard::Outcome::kTaken);
  }
  const std::vector<float> got = Values(&sparse);
  const std::vector<float> expected = Values(&dense);
  size_t changed = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == start[i]) continue;
    ++changed;
    REQUIRE(got[i] == expected[i]);
  }
  CHECK(changed == 7);
  CHECK(got[kPageParams + 4999] == expected[0]);
  CHECK(sparse.version() == 3);
  CHECK(sparse.Apply(Push(1, 2), SparseGradient(named, 2.0f), 1) == Shard::Outcome::kDuplicate);
}

TEST_CASE("sparse Adam is lazy: state moves only with the parameters that are named", "[shard]") {
  // torch.optim.SparseAdam's rule in plain code: moments of named values only, bias correction by the step.
  OptimizerConfig config = Adam();
  config.weight_decay = 0;
  Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  std::vector<double> p(3), m(3), v(3);
  const std::vector<std::vector<uint16_t>> steps = {{0, 1, 2}, {1}, {0, 2}, {2}, {0, 1}};
  for (uint64_t step = 0; step < steps.size(); ++step) {
    const double gradient = 0.25 * static_cast<double>(step + 1);
    shard.Apply(Push(1, step), SparseGradient({steps[step], {}}, static_cast<float>(gradient)), 1);
    for (const uint16_t i : steps[step]) {
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      v[i] = 0.999 * v[i] + 0.001 * gradient * gradient;
      const double t = static_cast<double>(step + 1);
      const double corrected = std::sqrt(v[i] / (1 - std::pow(0.999, t)));
      p[i] -= 0.1 / (1 - std::pow(0.9, t)) * m[i] / (corrected + 1e-8);
    }
  }
  const std::vector<float> values = Values(&shard);
  for (size_t i = 0; i < 3; ++i) CHECK(values[i] == Approx(p[i]).epsilon(1e-5));
  CHECK(values[3] == 0);
}

TEST_CASE("a mean over sparse contributions is the mean of them all, filled up with zeros", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  for (const bool one_dense : {false, true}) {
    Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
    CHECK(shard.Contribute(Push(1, 0), From(0, 30, SparseGradient({{3, 5}, {7}}, 4.0f))) ==
          Shard::Outcome::kTaken);
    shard.Contribute(
        Push(2, 0),
        From(30, 10, one_dense ? Gradient(CodecId::kFp16, 1.0f) : SparseGradient({{5, 9}, {}}, 1.0f)));
    shard.CloseStep(0, {By(1), By(2)});
    const std::vector<float> values = Values(&shard);
    CHECK(values[5] == -(30 * 4.0f + 10 * 1.0f) / 40);
    CHECK(values[3] == -(30 * 4.0f + (one_dense ? 10 : 0)) / 40);
    CHECK(values[9] == -10.0f / 40);
    CHECK(values[kPageParams + 7] == values[3]);
    CHECK(values[6] == (one_dense ? -10.0f / 40 : 0.0f));
  }
}

TEST_CASE("a reader gets what changed since its version, in as few bytes as that takes", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1.0f), 1);
  const std::vector<float> at_1 = Values(&shard);
  shard.Apply(Push(1, 1), SparseGradient({{1, 2}, {3}}, 0.5f), 1);
  const std::vector<float> at_2 = Values(&shard);
  shard.Apply(Push(1, 2), SparseGradient({{2, 900}, {}}, 0.25f), 1);
  const std::vector<float> at_3 = Values(&shard);
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    const Shard::Update from_1 = shard.EncodedSince(codec, 1);
    CHECK(from_1.codec == SparseCodec(codec));
    CHECK(from_1.payload.size() < 40);
    CHECK(Patched(at_1, from_1) == at_3);
    CHECK(Patched(at_2, shard.EncodedSince(codec, 2)) == at_3);
    // A reader that has a newer version by now loses nothing either.
    CHECK(Patched(at_2, from_1) == at_3);
    // Everything changed since version 0; nothing is known of a version to come, or of none.
    for (const uint64_t base : {uint64_t{0}, uint64_t{9}, kNoVersion}) {
      const Shard::Update all = shard.EncodedSince(codec, base);
      CHECK(all.codec == codec);
      CHECK(Patched({}, all) == at_3);
    }
  }
  CHECK(shard.EncodedSince(CodecId::kFp32, 3).payload.size() == 2 * kSparsePageHeaderBytes);
  // A restored shard knows no history.
  Shard restored(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  restored.Restore(shard.Cut());
  CHECK(restored.EncodedSince(CodecId::kFp32, 2).codec == CodecId::kFp32);
}

TEST_CASE("a page that changed in many places is sent whole, the others not at all", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
  const std::vector<float> before = Values(&shard);
  std::vector<uint16_t> most(4000);
  for (size_t i = 0; i < most.size(); ++i) most[i] = static_cast<uint16_t>(i);
  shard.Apply(Push(1, 0), SparseGradient({{}, most}, 1.0f), 1);
  const Shard::Update update = shard.EncodedSince(CodecId::kFp16, 0);
  CHECK(update.payload.size() == 2 * kSparsePageHeaderBytes + 2 * (kSize - kPageParams));
  CHECK(Patched(before, update) == Values(&shard));
}

}  // namespace recon
