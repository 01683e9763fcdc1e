#include "worker/encode/lost_values.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "worker/encode/cpu_encoder.h"

namespace recon {
namespace {

// Small values beside large ones, in one page.
ParamLayout Layout() {
  ModelSpec model;
  model.set_name("m");
  for (const char* name : {"large", "small", "third", "fourth"}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->add_shape(1000);
  }
  return *ParamLayout::Create(model);
}

EncodedPush Encode(const ParamLayout& layout, const char* codec, float small, bool feedback = true) {
  EncoderOptions options;
  options.feedback = feedback;
  CpuEncoder encoder(options, &layout);
  GradientBuffer gradient;
  gradient.host.assign(layout.params(), 1.0f);
  std::fill_n(gradient.host.begin() + 1000, 1000, small);
  gradient.host[1500] = 0;
  EncodePlan plan;
  plan.groups = {*ParseCodecSpec(codec)};
  return *encoder.Encode(&gradient, plan);
}

}  // namespace

TEST_CASE("values that become 0 beside much larger ones are counted, and their tensors are named",
          "[encode]") {
  const ParamLayout layout = Layout();
  const EncodedPush lost = Encode(layout, "fp16", 1e-14f);
  CHECK(lost.stats.underflown == 999);
  CHECK(lost.stats.saturated == 0);
  CHECK(lost.shards[0].lost == 999);
  const std::string said = DescribeLost(layout, lost);
  INFO(said);
  CHECK(absl::StrContains(
      said, "of 4000 gradient values of large, small, third and 1 more, 999 do not fit codec fp16"));

  for (const char* codec : {"fp32", "bf16"})
    CHECK(DescribeLost(layout, Encode(layout, codec, 1e-14f)).empty());
  const EncodedPush fits = Encode(layout, "fp16", 1e-11f);
  CHECK(fits.stats.lost() == 0);
  CHECK(DescribeLost(layout, fits).empty());
}

TEST_CASE("a few values of a thousand are counted in silence", "[encode]") {
  const ParamLayout layout = Layout();
  EncodedPush push = Encode(layout, "fp16", 1.0f);
  push.shards[0].lost = 4;
  CHECK(DescribeLost(layout, push).empty());
  push.shards[0].lost = 5;
  CHECK(!DescribeLost(layout, push).empty());
}

TEST_CASE("what is kept back for the next push is not lost", "[encode]") {
  const ParamLayout layout = Layout();
  CHECK(Encode(layout, "topk:1", 1e-14f).stats.lost() == 0);
  CHECK(Encode(layout, "topk:1", 1e-14f, /*feedback=*/false).stats.underflown == 999);
}

}  // namespace recon
