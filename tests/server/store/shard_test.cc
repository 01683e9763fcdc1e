#include "server/store/shard.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "tests/server/store/shard_pushes.h"

namespace recon {

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
            const EncodedGradient gradient{codec, kSize, Copy(sent.payload), sent.exponent};
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

TEST_CASE("rates that workers name for a step and that stay apart are told, with both", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), {0, 0, 10}, StatePlanes(config.kind), config, {});
  uint64_t step = 0;
  const auto close = [&](double first, double other) {
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      Contribution contribution = From(worker, 1, Gradient(CodecId::kFp32, 0.0f, 10));
      contribution.learning_rate = worker == 1 ? first : other;
      CHECK(shard.Contribute(Push(worker, step), std::move(contribution)) == Shard::Outcome::kTaken);
    }
    const auto closed = shard.CloseStep(step++, {By(1), By(2)});
    REQUIRE(closed);
    return closed->unlike_rates;
  };
  for (int i = 0; i < 20; ++i) CHECK_FALSE(close(0.1, 0.105));
  for (int i = 1; i < Shard::kUnlikeSteps; ++i) CHECK_FALSE(close(0.1, 0.05));
  CHECK_FALSE(close(0.1, 0.1));  // They are counted anew.
  for (int i = 1; i < Shard::kUnlikeSteps; ++i) CHECK_FALSE(close(0, 0.05));
  const auto unlike = close(0.1, 0.05);
  REQUIRE(unlike);
  CHECK(unlike->first == WorkerId(1));
  CHECK(unlike->other == WorkerId(2));
  CHECK(unlike->first_rate == 0.1);
  CHECK(unlike->other_rate == 0.05);
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
  CHECK(shard.counts().pages_cloned == 6);  // Two pages in three roles: the cut holds the old ones.
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

TEST_CASE("the first parameter that is not finite is found, in any page", "[shard]") {
  const OptimizerConfig config = Sgd(1);
  Shard shard(ShardId(0), ShardPlacement{0, 0, kSize}, StatePlanes(config.kind), config, {});
  std::vector<float> gradient(kSize, 1);
  shard.Apply(Push(1, 0), Gradient(CodecId::kFp32, gradient, 0), 1);
  CHECK_FALSE(shard.FirstNonFinite());
  gradient[kSize - 1] = std::numeric_limits<float>::infinity();
  shard.Apply(Push(1, 1), Gradient(CodecId::kFp32, gradient, 0), 1);
  CHECK(shard.FirstNonFinite() == kSize - 1);
  gradient[17] = std::nanf("");
  shard.Apply(Push(1, 2), Gradient(CodecId::kFp32, gradient, 0), 1);
  CHECK(shard.FirstNonFinite() == 17);
}

}  // namespace recon
