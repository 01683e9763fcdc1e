#include "server/store/shard.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

constexpr uint32_t kSize = kPageParams + 5000;

EncodedGradient Gradient(CodecId codec, const std::vector<float>& values, size_t cut) {
  const auto count = static_cast<uint32_t>(values.size());
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
EncodedGradient Gradient(CodecId codec, float value, uint32_t count = kSize, size_t cut = 0) {
  return Gradient(codec, std::vector<float>(count, value), cut);
}

OptimizerConfig Sgd(double rate) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  config.learning_rate = rate;
  return config;
}

// Of 16-bit values.
auto MemoryOf(size_t values) {
  return [values] {
    const std::shared_ptr<uint8_t[]> bytes(new uint8_t[2 * values]);
    ByteChain chain;
    chain.Append(bytes.get(), 2 * values, bytes);
    return chain;
  };
}

// The same bytes in the same pieces, of one owner, that may be written.
ByteChain Copy(const ByteChain& bytes) {
  const std::shared_ptr<uint8_t[]> all(new uint8_t[bytes.size() + bytes.pieces().size()]);
  ByteChain copy;
  uint8_t* at = all.get();
  for (const ByteChain::Piece& piece : bytes.pieces()) {
    std::memcpy(at, piece.data, piece.size);
    copy.Append(at, piece.size, all);
    at += piece.size + 1;  // Apart, as a network's buffers are.
  }
  return copy;
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

Contributor By(uint32_t worker) { return {WorkerId(worker), Incarnation(100 + worker)}; }

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
      Shard shard(ShardId(0), placement, StatePlanes(config.kind), config, {});
      CHECK(shard.Apply(Push(1, 0), Gradient(codec, 2.0f, kSize, cut), 1) == Shard::Outcome::kTaken);
      CHECK(shard.version() == 1);
      const std::vector<float> values = Values(&shard);
      CHECK(values == std::vector<float>(kSize, -1.0f));
    }
  }
}

TEST_CASE("what is encoded with an update is what is encoded after it, and is shared while it is lent",
          "[shard]") {
  const OptimizerConfig config = Sgd(0.5);
  const ShardPlacement placement{0, 0, kSize};
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    for (const CodecId reply : {CodecId::kFp16, CodecId::kBf16}) {
      Shard together(ShardId(0), placement, StatePlanes(config.kind), config, {});
      Shard apart(ShardId(0), placement, StatePlanes(config.kind), config, {});
      const EncodedGradient gradient = Gradient(codec, 0.3f, kSize, 40'001);
      ByteChain encoded;
      CHECK(together.ApplyAndEncode(Push(1, 0), gradient, 1, reply, MemoryOf(kSize), &encoded) ==
            Shard::Outcome::kTaken);
      CHECK(apart.Apply(Push(1, 0), gradient, 1) == Shard::Outcome::kTaken);
      CHECK(Values(&together) == Values(&apart));
      CHECK(together.version() == 1);
      CHECK(encoded.ToString() == apart.Encoded(reply).ToString());
      CHECK(together.Encoded(reply).pieces().front().data == encoded.pieces().front().data);
      ByteChain again;
      CHECK(together.ApplyAndEncode(Push(1, 0), gradient, 1, reply, MemoryOf(kSize), &again) ==
            Shard::Outcome::kDuplicate);
      CHECK(again.ToString() == encoded.ToString());
      CHECK(together.version() == 1);
      const std::weak_ptr<const void> owner = encoded.pieces().front().owner;
      encoded = again = ByteChain();
      CHECK(owner.expired());
      CHECK(together.Encoded(reply).ToString() == apart.Encoded(reply).ToString());
    }
  }
}

TEST_CASE("a reply may be written over the gradient it answers, or to any pieces", "[shard]") {
  ApplyRules rules;
  rules.optimizer.kind = OptimizerKind::kAdam;
  rules.optimizer.learning_rate = 0.01;
  rules.cluster_epoch = 7;
  const int planes = StatePlanes(rules.optimizer.kind);
  std::vector<float> values(kSize);
  for (size_t i = 0; i < kSize; ++i) values[i] = static_cast<float>(i % 997) - 400;
  struct Cuts {
    size_t gradient, reply;
  };
  for (const StalenessCorrection correction : {StalenessCorrection::kNone, StalenessCorrection::kGapAware}) {
    rules.correction = {correction, correction == StalenessCorrection::kNone ? 0u : 2u};
    for (const CodecId codec : {CodecId::kFp16, CodecId::kBf16}) {
      for (const CodecId reply : {CodecId::kFp16, CodecId::kBf16}) {
        for (const Cuts cuts : {Cuts{0, 0}, {65'536, 65'536}, {40'001, 40'001}, {777, 777}, {0, 555}}) {
          CAPTURE(CodecName(codec), CodecName(reply), cuts.gradient, cuts.reply);
          Shard over(ShardId(0), {0, 0, kSize}, planes, rules.optimizer, {});
          Shard apart(ShardId(0), {0, 0, kSize}, planes, rules.optimizer, {});
          over.SetRules(rules, {});
          apart.SetRules(rules, {});
          // The second is stale: it is compared, where that is the rule.
          for (const uint64_t step : {0, 1}) {
            const EncodedGradient sent = Gradient(codec, values, cuts.gradient);
            const EncodedGradient gradient{codec, kSize, Copy(sent.payload)};
            ByteChain memory = gradient.payload;
            if (cuts.reply != cuts.gradient) memory = Copy(Gradient(reply, values, cuts.reply).payload);
            Shard::PushId id = Push(1, step);
            id.base = 0;
            ByteChain encoded;
            CHECK(over.ApplyAndEncode(
                      id, gradient, 1, reply, [&] { return memory; }, &encoded) == Shard::Outcome::kTaken);
            CHECK(apart.Apply(id, sent, 1) == Shard::Outcome::kTaken);
            CHECK((Values(&over) == Values(&apart)));
            CHECK(encoded.pieces().front().data == memory.pieces().front().data);
            const std::string expected = apart.Encoded(reply).ToString();
            CHECK((encoded.ToString() == expected));
            // In as many pieces it is lent.
            const ByteChain lent = over.Encoded(reply);
            CHECK((lent.ToString() == expected));
            CHECK(lent.pieces().size() == encoded.pieces().size());
            CHECK(lent.pieces().back().data == encoded.pieces().back().data);
          }
        }
      }
    }
  }
}

TEST_CASE("a stale gradient is compared with the version that it was computed from", "[shard]") {
  ApplyRules rules;
  rules.optimizer = Sgd(1);
  rules.cluster_epoch = 7;
  uint64_t step = 0;
  const auto push = [&](uint64_t base) {
    Shard::PushId id = Push(1, step++);
    id.base = base;
    return id;
  };
  const auto sparse = [] {
    SparseWriter writer(CodecId::kSparseFp32);
    std::vector<uint16_t> indices(kPageParams);
    std::iota(indices.begin(), indices.end(), uint16_t{0});
    const std::vector<float> values(kSize, 2.0f);
    writer.AddPage(kPageParams, indices, values.data());
    writer.AddWholePage(kSize - kPageParams, values.data());
    return EncodedGradient{CodecId::kSparseFp32, kSize, ByteChain::FromString(writer.Finish())};
  };
  const auto all = [](Shard* shard) {
    const std::vector<float> values = Values(shard);
    CHECK(values == std::vector<float>(kSize, values[0]));
    return values[0];
  };
  for (const bool dense : {true, false}) {
    CAPTURE(dense);
    const EncodedGradient gradient = dense ? Gradient(CodecId::kFp16, 2.0f) : sparse();
    rules.correction = {StalenessCorrection::kGapAware, 3};
    Shard shard(ShardId(0), {0, 0, kSize}, 0, rules.optimizer, {});
    shard.SetRules(rules, {});
    shard.Apply(push(0), gradient, 1);
    CHECK(all(&shard) == -2);
    // One gradient moves a parameter by 2; it has moved by 2, and then by 3.
    shard.Apply(push(0), gradient, 1);
    CHECK(all(&shard) == -3);
    shard.Apply(push(0), gradient, 1);
    CHECK(all(&shard) == Approx(-3 - 2 / 2.5));
    // Version 0 is not kept any more, that of another is not known.
    shard.Apply(push(0), gradient, 1);
    CHECK(all(&shard) == Approx(-3.8 - 2.0 / 3));
    shard.Apply(push(kNoVersion), gradient, 1);
    const double before = all(&shard);
    CHECK(before == Approx(-3.8 - 2.0 / 3 - 2));
    // Nor those from before a cut; that of the cut is.
    ByteChain encoded;
    if (dense) {
      Shard twin(ShardId(0), {0, 0, kSize}, 0, rules.optimizer, {});
      twin.SetRules(rules, {});
      shard.HideVersions();
      twin.Restore(shard.Cut());
      CHECK(shard.ApplyAndEncode(push(4), gradient, 1, CodecId::kFp16, MemoryOf(kSize), &encoded) ==
            Shard::Outcome::kTaken);
      twin.Apply(push(4), gradient, 1);
      CHECK(Values(&shard) == Values(&twin));
      CHECK(all(&shard) == Approx(before - 2));  // Of staleness 1.
      encoded = ByteChain();
      shard.ApplyAndEncode(push(5), gradient, 1, CodecId::kFp16, MemoryOf(kSize), &encoded);
      twin.Apply(push(5), gradient, 1);
      CHECK(Values(&shard) == Values(&twin));
      CHECK(all(&shard) == Approx(before - 3));
      const bool same = encoded.ToString() == twin.Encoded(CodecId::kFp16).ToString();
      CHECK(same);
    }
    rules.correction = {StalenessCorrection::kDelayCompensated, 3};
    rules.cluster_epoch = 8;
    Shard compensated(ShardId(0), {0, 0, kSize}, 0, rules.optimizer, {});
    compensated.SetRules(rules, {});
    compensated.Apply(push(0), gradient, 1);
    compensated.Apply(push(0), gradient, 1);
    CHECK(all(&compensated) == Approx(-2 - (2 + 0.04 * 2 * 2 * -2)));
    rules.cluster_epoch = 7;
  }
}

TEST_CASE("a push that the ledger has forgotten is never acknowledged, and never applied", "[shard]") {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  Shard shard(ShardId(0), {0, 0, 10}, 0, config, {});
  CHECK(shard.Apply(Push(1, 1000), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kTaken);
  ByteChain encoded;
  CHECK(shard.Apply(Push(1, 900), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kLate);
  CHECK(shard.ApplyAndEncode(Push(1, 900), Gradient(CodecId::kFp32, 1, 10), 1, CodecId::kFp16, MemoryOf(10),
                             &encoded) == Shard::Outcome::kLate);
  CHECK(shard.Contribute(Push(1, 900), Contribution()) == Shard::Outcome::kLate);
  CHECK(shard.version() == 1);
}

TEST_CASE("a push is applied once, however often it is sent", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
  CHECK(shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kTaken);
  CHECK(shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 1, 10), 1) == Shard::Outcome::kDuplicate);
  CHECK(shard.version() == 1);
  CHECK(Values(&shard)[0] == -1);
}

TEST_CASE("a mean is weighted by samples and does not depend on who came first", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  std::vector<float> first;
  for (const bool reversed : {false, true}) {
    Shard shard(ShardId(0), {0, 0, kSize}, StatePlanes(config.kind), config, {});
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
  Shard shard(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
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
  Shard shard(ShardId(0), placement, StatePlanes(config.kind), config, {});
  shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, 0.1f), 1);
  const std::vector<float> at_cut = Values(&shard);
  const ShardCut cut = shard.Cut();
  shard.Apply(Push(1, 1), Gradient(CodecId::kFp32, 0.2f), 1);
  CHECK(shard.pages_cloned() == 6);  // Two pages in three roles: the cut holds the old ones.
  CHECK(std::memcmp(cut.pages[0][0].data(), at_cut.data(), kPageBytes) == 0);

  Shard restored(ShardId(0), placement, StatePlanes(config.kind), config, {});
  restored.Restore(cut);
  CHECK(restored.version() == 1);
  CHECK(restored.Apply(Push(1, 0), Gradient(CodecId::kFp32, 9), 1) == Shard::Outcome::kDuplicate);
  CHECK(restored.Apply(Push(1, 1), Gradient(CodecId::kFp32, 0.2f), 1) == Shard::Outcome::kTaken);
  const std::vector<float> live = Values(&shard);
  CHECK(std::memcmp(live.data(), Values(&restored).data(), live.size() * sizeof(float)) == 0);
}

TEST_CASE("a cut never says it has a contribution whose step is open", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
  shard.Contribute(Push(1, 0), From(0, 1, Gradient(CodecId::kFp32, 1, 10)));
  Shard restored(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
  restored.Restore(shard.Cut());
  CHECK(restored.Contribute(Push(1, 0), From(0, 1, Gradient(CodecId::kFp32, 1, 10))) ==
        Shard::Outcome::kTaken);
}

TEST_CASE("a 16-bit encoding is made once per version", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
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

TEST_CASE("a push that is left out has no effect, now or later, and others keep their staleness", "[shard]") {
  ApplyRules rules;
  rules.optimizer = Sgd(1);
  rules.correction.kind = StalenessCorrection::kInverse;
  const ShardPlacement placement{0, 0, kSize};
  Shard all(ShardId(0), placement, 0, rules.optimizer, {}),
      never(ShardId(0), placement, 0, rules.optimizer, {});
  all.SetRules(rules, {});
  never.SetRules(rules, {});
  const EncodedGradient gradient = Gradient(CodecId::kFp32, 6.0f);
  const auto named = [](uint64_t step, uint64_t base) {
    Shard::PushId id = Push(1, step);
    id.base = base;
    return id;
  };
  // What the log says, of a life in which steps 1 and 4 were applied as well; each as many updates ago.
  const std::pair<uint64_t, uint64_t> logged[] = {{0, 0}, {1, 1}, {2, 2}, {3, 1},
                                                  {4, 4}, {5, 5}, {6, 3}, {7, 7}};
  for (const auto& [step, base] : logged) {
    if (step == 1 || step == 4) {
      all.LeaveOut(named(step, base));
    } else {
      CHECK(all.Apply(named(step, all.WithoutLeftOut(base)), gradient, 1) == Shard::Outcome::kTaken);
    }
  }
  // The same pushes, where those two never were: 3 had missed 2's update, 6 those of 3 and 5.
  const std::pair<uint64_t, uint64_t> without[] = {{0, 0}, {2, 1}, {3, 1}, {5, 3}, {6, 2}, {7, 5}};
  for (const auto& [step, base] : without) never.Apply(named(step, base), gradient, 1);
  CHECK(all.version() == never.version());
  CHECK(Values(&all) == Values(&never));
  CHECK(Values(&never)[0] == -(6.0f * 5 + 6.0f / 2));
  // Sent again it changes nothing.
  CHECK(all.Apply(named(1, 0), gradient, 1) == Shard::Outcome::kDuplicate);
  all.LeaveOut(named(1, 0));
  CHECK(all.WithoutLeftOut(9) == 7);
  all.ForgetLeftOut();
  CHECK(all.WithoutLeftOut(9) == 9);
}

TEST_CASE("an update goes by the learning rate that came with its push, and by none of the server's",
          "[shard]") {
  OptimizerConfig config = Sgd(0.5);
  config.schedule.kind = ScheduleKind::kStep;
  const GroupPolicy policy{/*learning_rate_scale=*/10, /*weight_decay_scale=*/1};
  Shard shard(ShardId(0), {0, 0, 4}, 0, config, policy);
  Shard::PushId with = Push(1, 0);
  with.learning_rate = 0.25;
  CHECK(shard.Apply(with, Gradient(CodecId::kFp32, 2.0f, 4), 1) == Shard::Outcome::kTaken);
  CHECK(Values(&shard) == std::vector<float>(4, -0.5f));
  with = Push(1, 1);
  with.learning_rate = 0;  // A warm-up may begin with it.
  CHECK(shard.Apply(with, Gradient(CodecId::kFp32, 2.0f, 4), 1) == Shard::Outcome::kTaken);
  CHECK(Values(&shard) == std::vector<float>(4, -0.5f));
}

TEST_CASE("a synchronous step goes by the rate of its first contribution in the order of the sum",
          "[shard]") {
  const OptimizerConfig config = Sgd(0.5);
  Shard shard(ShardId(0), {0, 0, 4}, 0, config, {});
  Contribution later = From(20, 1, Gradient(CodecId::kFp32, 1.0f, 4));
  later.learning_rate = 100;
  Contribution first = From(10, 1, Gradient(CodecId::kFp32, 3.0f, 4));
  first.learning_rate = 0.25;
  shard.Contribute(Push(1, 0), std::move(later));
  shard.Contribute(Push(2, 0), std::move(first));
  shard.CloseStep(0, {By(1), By(2)});
  CHECK(Values(&shard) == std::vector<float>(4, -0.5f));
}

TEST_CASE("what is averaged goes where its pushes moved, whatever the optimizer", "[shard]") {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdamW;
  config.weight_decay = 0.1;
  GroupPolicy averaged;
  averaged.averaged = true;
  Shard shard(ShardId(0), {0, 0, 4}, StatePlanes(config.kind), config, averaged);
  CHECK(shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, -3.0f, 4), 1) == Shard::Outcome::kTaken);
  CHECK(Values(&shard) == std::vector<float>(4, 3.0f));
  shard.Contribute(Push(1, 1), From(0, 3, Gradient(CodecId::kFp32, -4.0f, 4)));
  shard.Contribute(Push(2, 1), From(1, 1, Gradient(CodecId::kFp32, 0.0f, 4)));
  shard.CloseStep(1, {By(1), By(2)});
  CHECK(Values(&shard) == std::vector<float>(4, 6.0f));  // The mean by samples.
}

}  // namespace recon
