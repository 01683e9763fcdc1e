#include "worker/encode/cpu_encoder.h"

#include <cmath>
#include <random>
#include <set>

#include "catch2/catch.hpp"
#include "common/codec/int8_codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

ParamLayout TwoGroups() {
  ModelSpec model;
  model.set_name("two");
  TensorSpec* weight = model.add_tensors();
  weight->set_name("weight");
  weight->add_shape(70'000);
  TensorSpec* bias = model.add_tensors();
  bias->set_name("bias");
  bias->add_shape(300);
  bias->set_group("no_decay");
  return *ParamLayout::Create(model);
}

GradientBuffer Random(const ParamLayout& layout, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  GradientBuffer buffer;
  buffer.host.resize(layout.params());
  for (float& value : buffer.host) value = normal(random);
  return buffer;
}

EncodePlan Plan(const char* weight, const char* bias, uint64_t seed = 1) {
  EncodePlan plan;
  plan.groups = {*ParseCodecSpec(weight), *ParseCodecSpec(bias)};
  plan.seed = seed;
  return plan;
}

// All values of a push, 0 where none was sent.
std::vector<float> Decoded(const ParamLayout& layout, const EncodedPush& push) {
  std::vector<float> values(layout.params(), 0.0f);
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    const ShardPlacement& shard = layout.shards()[i];
    const EncodedShard& encoded = push.shards[i];
    float* out = values.data() + shard.offset;
    REQUIRE(CheckPayloadBytes(encoded.codec, shard.size, encoded.payload.size()).ok());
    REQUIRE(CheckPayload(encoded.codec, shard.size, encoded.payload).ok());
    const std::string bytes = encoded.payload.ToString();
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    if (IsSparse(encoded.codec)) {
      (void)ForEachSparsePage(
          encoded.codec, shard.size, encoded.payload,
          [&](const SparsePage& page) {
            for (size_t j = 0; j < page.values.size(); ++j) {
              out[page.page * kPageParams + (page.all ? j : page.indices[j])] = page.values[j];
            }
          },
          encoded.exponent);
    } else if (encoded.codec == CodecId::kInt8) {
      for (uint32_t page = 0; page < shard.pages(); ++page) {
        float scale;
        std::memcpy(&scale, data + page * sizeof(float), sizeof(float));
        DecodeInt8(data + shard.pages() * sizeof(float) + page * kPageParams, shard.PageSize(page), scale,
                   out + page * kPageParams);
      }
    } else {
      Decode(encoded.codec, data, shard.size, out, encoded.exponent);
    }
  }
  return values;
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - b[i], 2);
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("each group has its codec, and norms are those of what is sent and kept", "[encode]") {
  const ParamLayout layout = TwoGroups();
  CpuEncoder encoder({}, &layout);
  GradientBuffer gradient = Random(layout, 1);
  const auto push = encoder.Encode(&gradient, Plan("topk:0.01", "fp32"));
  REQUIRE(push.ok());
  CHECK(push->shards[0].codec == CodecId::kSparseFp16);
  CHECK(push->shards.back().codec == CodecId::kFp32);
  const std::vector<float> sent = Decoded(layout, *push);
  double norm = 0;
  double kept = 0;
  size_t count = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    norm += std::pow(sent[i], 2);
    kept += std::pow(gradient.host[i] - sent[i], 2);
    count += sent[i] != 0 ? 1 : 0;
  }
  CHECK(count == 656 + 45 + 300);  // ceil(1 %) of each page, and the other group.
  CHECK(push->norm == Approx(std::sqrt(norm)).epsilon(1e-3));
  CHECK(push->residual_norm == Approx(std::sqrt(kept)).epsilon(1e-6));
}

TEST_CASE("what is kept back of a shard that the push has not stays as it is", "[encode]") {
  const ParamLayout layout = TwoGroups();
  CpuEncoder all(EncoderOptions(), &layout), some(EncoderOptions(), &layout);
  GradientBuffer zero;
  const auto encode = [&](CpuEncoder* encoder, GradientBuffer gradient, std::vector<bool> due) {
    EncodePlan plan = Plan("topk:0.01", "topk:0.01");
    plan.due = std::move(due);
    return *encoder->Encode(&gradient, plan);
  };
  zero.host.resize(layout.params());
  CHECK(encode(&all, Random(layout, 1), {}).norm == encode(&some, Random(layout, 1), {}).norm);
  std::vector<bool> last_only(layout.shard_count(), false);
  last_only.back() = true;
  const EncodedPush partial = encode(&some, zero, last_only);
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    CHECK(partial.shards[i].left_out == !last_only[i]);
    CHECK((partial.shards[i].payload.size() == 0) == !last_only[i]);
  }
  const EncodedPush next = encode(&all, zero, {});
  const EncodedPush then = encode(&some, zero, {});
  CHECK(next.shards[0].payload.ToString() == then.shards[0].payload.ToString());
  CHECK(next.shards.back().payload.ToString() == partial.shards.back().payload.ToString());
}

TEST_CASE("whatever the codecs in between, a flush leaves nothing behind", "[encode]") {
  const ParamLayout layout = TwoGroups();
  for (const bool bf16 : {false, true}) {
    for (const char* codec : {"topk:0.01", "int8", "randomk:0.1", "threshold:2.5"}) {
      INFO(codec << (bf16 ? ", residual in bf16" : ""));
      EncoderOptions options;
      options.bf16_residual = bf16;
      CpuEncoder encoder(options, &layout);
      std::vector<double> computed(layout.params()), delivered(layout.params());
      for (uint64_t step = 0; step < 6; ++step) {
        GradientBuffer gradient = Random(layout, step);
        EncodePlan plan = Plan(codec, codec, step);
        if (step == 5) plan.flush.assign(layout.shard_count(), true);
        const auto push = encoder.Encode(&gradient, plan);
        REQUIRE(push.ok());
        const std::vector<float> sent = Decoded(layout, *push);
        for (size_t i = 0; i < sent.size(); ++i) {
          computed[i] += gradient.host[i];
          delivered[i] += sent[i];
        }
        if (step == 0) CHECK(push->residual_norm > 1);
        if (step == 5) CHECK(push->residual_norm == 0);
      }
      std::vector<float> missing(layout.params());
      for (size_t i = 0; i < missing.size(); ++i) missing[i] = static_cast<float>(computed[i] - delivered[i]);
      const double limit = bf16 ? 5 : 0.5;  // Of a sum with norm 650.
      CHECK(Distance(missing, std::vector<double>(missing.size())) < limit);
    }
  }
}

TEST_CASE("a dense codec after a sparse one sends what was kept back, once", "[encode]") {
  const ParamLayout layout = TwoGroups();
  CpuEncoder encoder({}, &layout);
  GradientBuffer first = Random(layout, 1);
  GradientBuffer second = Random(layout, 2);
  const std::vector<float> sent = Decoded(layout, *encoder.Encode(&first, Plan("topk:0.01", "topk:0.01")));
  const std::vector<float> rest = Decoded(layout, *encoder.Encode(&second, Plan("fp32", "fp32")));
  for (size_t i = 0; i < rest.size(); ++i) {
    REQUIRE(rest[i] == Approx(first.host[i] - sent[i] + second.host[i]).margin(1e-5));
  }
  CHECK(Decoded(layout, *encoder.Encode(&second, Plan("fp32", "fp32"))) == second.host);
}

TEST_CASE("dense payloads lie in the memory that the plan gives", "[encode]") {
  const ParamLayout layout = TwoGroups();
  CpuEncoder encoder({}, &layout);
  GradientBuffer gradient = Random(layout, 1);
  std::vector<std::shared_ptr<uint8_t[]>> given(layout.shard_count());
  EncodePlan plan = Plan("fp16", "int8");
  plan.memory = [&given](uint32_t shard, size_t bytes) {
    given[shard].reset(new uint8_t[bytes]);
    return given[shard];
  };
  const EncodedPush push = *encoder.Encode(&gradient, plan);
  REQUIRE(layout.shard_count() > 2);
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    REQUIRE(push.shards[i].payload.pieces().size() == 1);
    CHECK(push.shards[i].payload.pieces()[0].data == given[i].get());
  }
  // Or elsewhere, if it gives none.
  CpuEncoder same({}, &layout);
  plan.memory = [](uint32_t, size_t) { return nullptr; };
  gradient = Random(layout, 1);
  CHECK(Decoded(layout, push) == Decoded(layout, *same.Encode(&gradient, plan)));
  CpuEncoder another({}, &layout);
  gradient = Random(layout, 1);
  CHECK(Decoded(layout, push) == Decoded(layout, *another.Encode(&gradient, Plan("fp16", "int8"))));
}

TEST_CASE("where zeros change nothing, a shard of which few values are others goes without them",
          "[encode]") {
  const ParamLayout layout = TwoGroups();
  CpuEncoder encoder({}, &layout);
  GradientBuffer gradient = Random(layout, 1);
  // The first shard of the weight has 1 value in 16, the second all of them; the bias has none.
  const ShardPlacement& thin = layout.shards()[0];
  for (uint32_t i = 0; i < thin.size; ++i) {
    if (i % 16 != 3) gradient.host[thin.offset + i] = 0;
  }
  for (const ShardPlacement& shard : layout.shards()) {
    if (layout.groups()[shard.group] == "no_decay")
      std::fill_n(&gradient.host[shard.offset], shard.size, 0.0f);
  }
  const GradientBuffer copy = gradient;
  for (const char* codec : {"fp32", "fp16", "bf16"}) {
    INFO(codec);
    EncodePlan plan = Plan(codec, codec);
    const EncodedPush all = *encoder.Encode(&gradient, plan);
    plan.zeros_change_nothing = true;
    const EncodedPush few = *encoder.Encode(&gradient, plan);
    CHECK(Decoded(layout, few) == Decoded(layout, all));
    CHECK(few.norm == Approx(all.norm));
    CHECK(few.shards[0].codec == SparseCodec(all.shards[0].codec));
    CHECK(few.shards[0].payload.size() * 4 < all.shards[0].payload.size());
    CHECK(few.shards[1].codec == all.shards[1].codec);
    CHECK(IsSparse(few.shards.back().codec));
    CHECK(few.shards.back().payload.size() == kSparsePageHeaderBytes);
  }
  CHECK(gradient.host == copy.host);

  // What is no number is counted, and what an encoder keeps back has zeros of its own.
  EncodePlan plan = Plan("fp16", "int8");
  plan.zeros_change_nothing = true;
  gradient.host[thin.offset + 5] = std::nanf("");
  const EncodedPush push = *encoder.Encode(&gradient, plan);
  CHECK(IsSparse(push.shards[0].codec));
  CHECK(push.stats.non_finite == 1);
  CHECK(push.shards.back().codec == CodecId::kInt8);
}

TEST_CASE("gradients of every size arrive in fp16 with its precision, dense and sparse", "[encode]") {
  const ParamLayout layout = TwoGroups();
  for (const int power : {-120, -60, -30, 0, 30, 110}) {
    for (const char* codec : {"fp16", "topk:1", "randomk:1", "threshold:1e-44"}) {
      INFO(codec << " at 2^" << power);
      CpuEncoder encoder({}, &layout);
      GradientBuffer gradient = Random(layout, 1);
      for (float& value : gradient.host) value = std::ldexp(value, power);
      gradient.host[7] = 0;
      const std::vector<float> sent_of = gradient.host;
      const auto push = encoder.Encode(&gradient, Plan(codec, codec));
      REQUIRE(push.ok());
      CHECK(push->stats.lost() == 0);
      const std::vector<float> sent = Decoded(layout, *push);
      size_t wrong = 0;
      for (size_t i = 0; i < sent.size(); ++i) {
        wrong += std::fabs(sent[i] - sent_of[i]) >
                 std::ldexp(std::fabs(sent_of[i]), -11) + std::ldexp(1e-11, power);
      }
      CHECK(wrong == 0);
      CHECK(sent[7] == 0);
    }
  }
}

TEST_CASE("with error feedback small gradients come to their sum, whatever exponents their pushes have",
          "[encode]") {
  const ParamLayout layout = TwoGroups();
  for (const char* codec : {"topk:0.01", "randomk:0.1"}) {
    INFO(codec);
    CpuEncoder encoder({}, &layout);
    std::vector<double> computed(layout.params()), delivered(layout.params());
    std::set<int> exponents;
    for (uint64_t step = 0; step < 6; ++step) {
      GradientBuffer gradient = Random(layout, step);
      for (float& value : gradient.host) value *= std::ldexp(1e-9f, 3 * static_cast<int>(step % 3));
      EncodePlan plan = Plan(codec, codec, step);
      if (step == 5) plan.flush.assign(layout.shard_count(), true);
      const std::vector<float> given = gradient.host;
      const auto push = encoder.Encode(&gradient, plan);
      REQUIRE(push.ok());
      const std::vector<float> sent = Decoded(layout, *push);
      if (step < 5) exponents.insert(push->shards[0].exponent);
      for (size_t i = 0; i < sent.size(); ++i) {
        computed[i] += given[i];
        delivered[i] += sent[i];
      }
    }
    CHECK(exponents.size() > 1);
    size_t wrong = 0;
    for (size_t i = 0; i < computed.size(); ++i) wrong += std::fabs(computed[i] - delivered[i]) > 1e-13;
    CHECK(wrong == 0);  // Of values of 1e-8 about.
  }
}

TEST_CASE("averaged values are sent with their zeros", "[encode]") {
  ModelSpec model;
  model.set_name("norm");
  TensorSpec* mean = model.add_tensors();
  mean->set_name("mean");
  mean->add_shape(300);
  mean->set_group("buffers");
  mean->set_averaged(true);
  const ParamLayout layout = *ParamLayout::Create(model);
  CpuEncoder encoder({}, &layout);
  GradientBuffer gradient;
  gradient.host.resize(layout.params());
  EncodePlan plan;
  plan.groups = {*ParseCodecSpec("fp16")};
  plan.zeros_change_nothing = true;
  CHECK(encoder.Encode(&gradient, plan)->shards[0].codec == CodecId::kFp16);
}

TEST_CASE("without feedback nothing is kept", "[encode]") {
  const ParamLayout layout = TwoGroups();
  EncoderOptions options;
  options.feedback = false;
  CpuEncoder encoder(options, &layout);
  GradientBuffer gradient = Random(layout, 1);
  const auto one = encoder.Encode(&gradient, Plan("topk:0.01", "int8"));
  const auto two = encoder.Encode(&gradient, Plan("topk:0.01", "int8"));
  CHECK(Decoded(layout, *one) == Decoded(layout, *two));
  CHECK(two->residual_norm == 0);
}

}  // namespace recon
