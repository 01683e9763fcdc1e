#include "server/store/shard.h"

#include <cmath>
#include <cstring>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"

namespace recon {
namespace {

constexpr uint32_t kSize = kPageParams + 5000;

EncodedGradient Gradient(CodecId codec, float value, uint32_t count = kSize, size_t cut = 0) {
  const std::vector<float> values(count, value);
  std::string bytes(EncodedBytes(codec, count), '\0');
  Encode(codec, values.data(), count, reinterpret_cast<uint8_t*>(bytes.data()));
  EncodedGradient gradient{codec, count, {}};
  // Pieces of odd sizes, as slices of a network buffer are.
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = cut == 0 ? bytes.size() : std::min(cut, bytes.size() - at);
    gradient.payload.Append(ByteChain::FromString(bytes.substr(at, size)));
    at += size;
  }
  return gradient;
}

OptimizerConfig Sgd(double rate) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  config.learning_rate = rate;
  return config;
}

std::vector<float> Values(Shard* shard) {
  const std::string bytes = shard->Encoded(CodecId::kFp32).ToString();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Shard::PushId Push(uint32_t worker, uint64_t step) {
  return {WorkerId(worker), Incarnation(100 + worker), step};
}

Shard::Contributor By(uint32_t worker) { return {WorkerId(worker), Incarnation(100 + worker)}; }

Contribution From(uint64_t order_key, uint32_t samples, EncodedGradient gradient) {
  Contribution contribution;
  contribution.order_key = order_key;
  contribution.samples = samples;
  contribution.weight = samples;
  contribution.gradient = std::move(gradient);
  return contribution;
}

}  // namespace

TEST_CASE("an update reaches every parameter, whatever the codec and the slices", "[shard]") {
  const OptimizerConfig config = Sgd(0.5);
  const ShardPlacement placement{0, 0, kSize};
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    for (const size_t cut : {size_t{0}, size_t{65'536}, size_t{40'001}}) {
      Shard shard(ShardId(0), placement, &config, {});
      CHECK(shard.Apply(Push(1, 0), Gradient(codec, 2.0f, kSize, cut), 1) == Shard::Outcome::kTaken);
      CHECK(shard.version() == 1);
      const std::vector<float> values = Values(&shard);
      CHECK(values == std::vector<float>(kSize, -1.0f));
    }
  }
}

TEST_CASE("a push is applied once, however often it is sent", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, &config, {});
  CHECK(shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kTaken);
  CHECK(shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kDuplicate);
  CHECK(shard.version() == 1);
  CHECK(Values(&shard)[0] == -1);
}

TEST_CASE("a mean is weighted by samples and does not depend on who came first", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  std::vector<float> first;
  for (const bool reversed : {false, true}) {
    Shard shard(ShardId(0), {0, 0, kSize}, &config, {});
    // Values whose sum depends on the order of additions.
    std::vector<std::pair<uint32_t, Contribution>> sent;
    sent.emplace_back(1, From(640, 64, Gradient(CodecId::kFp32, 1.0f / 3)));
    sent.emplace_back(2, From(0, 32, Gradient(CodecId::kFp32, 1e7f)));
    sent.emplace_back(3, From(128, 32, Gradient(CodecId::kFp32, -1e7f)));
    if (reversed) std::reverse(sent.begin(), sent.end());
    for (auto& [worker, contribution] : sent) {
      CHECK(shard.Contribute(Push(worker, 0), std::move(contribution)) == Shard::Outcome::kTaken);
    }
    CHECK(shard.version() == 0);
    shard.CloseStep(0, {By(1), By(2), By(3)});
    CHECK(shard.version() == 1);
    if (first.empty()) first = Values(&shard);
    CHECK(std::memcmp(first.data(), Values(&shard).data(), first.size() * sizeof(float)) == 0);
  }
  CHECK(first[0] == Approx(-1.0 / 6));
}

TEST_CASE("a contribution of a worker that is not counted is dropped, and its resend is late", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, &config, {});
  const auto send = [&](uint32_t worker) {
    return shard.Contribute(Push(worker, 0),
                            From(worker, 1, Gradient(CodecId::kFp32, static_cast<float>(worker), 10)));
  };
  CHECK(send(1) == Shard::Outcome::kTaken);
  CHECK(send(1) == Shard::Outcome::kPending);
  CHECK(send(2) == Shard::Outcome::kTaken);
  shard.CloseStep(0, {By(1)});
  CHECK(Values(&shard)[0] == -1);
  CHECK(send(1) == Shard::Outcome::kDuplicate);  // It counted: the resend is acknowledged.
  CHECK(send(2) == Shard::Outcome::kLate);
  shard.CloseStep(1, {});
  CHECK(shard.version() == 1);  // A step nobody contributed to is no update.
}

TEST_CASE("a cut keeps the state of its moment, and a restored shard goes on from it with equal bits",
          "[shard]") {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdam;
  const ShardPlacement placement{0, 0, kSize};
  Shard shard(ShardId(0), placement, &config, {});
  shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 0.1f), 1);
  const std::vector<float> at_cut = Values(&shard);
  const ShardCut cut = shard.Cut();
  shard.Apply(Push(1, 1), Gradient(CodecId::kFp32, 0.2f), 1);
  CHECK(shard.pages_cloned() == 6);  // Two pages in three roles: the cut holds the old ones.
  CHECK(std::memcmp(cut.pages[0][0].data(), at_cut.data(), kPageBytes) == 0);

  Shard restored(ShardId(0), placement, &config, {});
  restored.Restore(cut, 0);
  CHECK(restored.version() == 1);
  CHECK(restored.Apply(Push(1, 0), Gradient(CodecId::kFp32, 9), 1) == Shard::Outcome::kDuplicate);
  CHECK(restored.Apply(Push(1, 1), Gradient(CodecId::kFp32, 0.2f), 1) == Shard::Outcome::kTaken);
  const std::vector<float> live = Values(&shard);
  CHECK(std::memcmp(live.data(), Values(&restored).data(), live.size() * sizeof(float)) == 0);
}

TEST_CASE("a cut never says it has a contribution whose step is open", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, &config, {});
  shard.Contribute(Push(1, 0), From(0, 1, Gradient(CodecId::kFp32, 1, 10)));
  Shard restored(ShardId(0), {0, 0, 10}, &config, {});
  restored.Restore(shard.Cut(), 0);
  CHECK(restored.Contribute(Push(1, 0), From(0, 1, Gradient(CodecId::kFp32, 1, 10))) ==
        Shard::Outcome::kTaken);
}

TEST_CASE("a 16-bit encoding is made once per version", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, &config, {});
  shard.SetInitialValues(Gradient(CodecId::kFp32, 2, 10));
  const ByteChain first = shard.Encoded(CodecId::kFp16);
  CHECK(first.pieces()[0].data == shard.Encoded(CodecId::kFp16).pieces()[0].data);
  shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1, 10), 1);
  float value = 0;
  uint8_t scratch[2];
  const ByteChain second = shard.Encoded(CodecId::kFp16);
  ByteReader reader(second);
  Decode(CodecId::kFp16, reader.Read(2, scratch), 1, &value);
  CHECK(value == 1);
}

}  // namespace recon
