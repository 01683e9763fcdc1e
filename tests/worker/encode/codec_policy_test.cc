#include "worker/encode/codec_policy.h"

#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

ParamLayout Layout() {
  ModelSpec model;
  model.set_name("m");
  for (const char* name : {"weight", "bias"}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->set_group(name);
    tensor->add_shape(tensor->name() == "bias" ? 10 : 250'000);
  }
  return *ParamLayout::Create(model);
}

CodecPolicy::Options OptionsFor(const std::string& codec) {
  CodecPolicy::Options options;
  options.rules = *CodecRules::Parse(codec);
  options.pull_auto = true;
  return options;
}

CodecChoice Choice(uint64_t version, const std::string& push, const std::string& pull) {
  CodecChoice choice;
  choice.set_version(version);
  choice.set_push(push);
  choice.set_pull(pull);
  return choice;
}

}  // namespace

TEST_CASE("auto follows the server's choice and confirms it when no older push is under way", "[encode]") {
  const ParamLayout layout = Layout();
  CodecPolicy policy(OptionsFor("auto"), &layout);
  CHECK(policy.Describe() == "auto: weight=fp16,bias=fp16");
  policy.Adopt(Choice(3, "topk:0.01", "bf16"));
  // Groups too small to matter are not thinned out.
  CHECK(policy.Describe() == "auto: weight=topk:0.01,bias=fp16");
  CHECK(policy.pull_codec() == CodecId::kBf16);
  for (int push = 0; push < 4; ++push) {
    CHECK(policy.work().choice() == 0);
    policy.NotePush({}, EncodedPush());
  }
  CHECK(policy.work().choice() == 3);
  CHECK(policy.work().pushes() == 4);
  // The same under another number, after a restart of the server.
  policy.Adopt(Choice(1, "topk:0.01", "bf16"));
  CHECK(policy.work().choice() == 1);
}

TEST_CASE("what is averaged goes whole in fp32, whatever --codec and the server say", "[encode]") {
  ModelSpec model = Layout().model();
  TensorSpec* mean = model.add_tensors();
  mean->set_name("mean");
  mean->add_shape(20);
  mean->set_group("buffers");
  mean->set_averaged(true);
  const ParamLayout layout = *ParamLayout::Create(model);
  for (const char* codec : {"topk:0.1", "int8", "fp16", "auto", "fp16,b*=randomk:0.1"}) {
    INFO(codec);
    CodecPolicy::Options options = OptionsFor(codec);
    options.flush_period = absl::ZeroDuration();
    options.warmup_data_epochs = 1;
    CodecPolicy policy(options, &layout);
    policy.Adopt(Choice(1, "topk:0.01", "fp16"));
    CHECK(policy.Restrict(0).ok());
    const EncodePlan plan = policy.PlanFor(0.5, false, {}, absl::UnixEpoch());
    CHECK(plan.groups[0].ToString() != "fp32");
    CHECK(plan.groups[2].ToString() == "fp32");
  }
  CHECK(CodecPolicy(OptionsFor("topk:0.1,buffers=fp32"), &layout).Restrict(0).ok());
  for (const char* said : {"topk:0.1,buffers=topk:0.1", "fp32,buffers=fp16", "fp32,buffers=auto"}) {
    const absl::Status status = CodecPolicy(OptionsFor(said), &layout).Restrict(0);
    INFO(status.message());
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), "of group buffers: its tensors are averaged"));
  }
}

TEST_CASE("a choice that cannot be read changes nothing", "[encode]") {
  const ParamLayout layout = Layout();
  CodecPolicy policy(OptionsFor("auto"), &layout);
  policy.Adopt(Choice(1, "topk:2", "fp16"));
  policy.Adopt(Choice(2, "fp32", "sparse-fp16"));
  CHECK(policy.Describe() == "auto: weight=fp16,bias=fp16");
}

TEST_CASE("a fixed codec is left alone, and says so", "[encode]") {
  const ParamLayout layout = Layout();
  CodecPolicy policy(OptionsFor("int8"), &layout);
  policy.Adopt(Choice(1, "topk:0.01", "fp16"));
  CHECK(policy.Describe() == "int8");
  CHECK_FALSE(policy.work().automatic());
}

TEST_CASE("each shard's residual is sent once in a period, whatever the time between pushes", "[encode]") {
  const ParamLayout layout = Layout();
  REQUIRE(layout.shard_count() == 5);
  CodecPolicy::Options options = OptionsFor("topk:0.01");
  options.flush_period = absl::Seconds(10);
  CodecPolicy policy(options, &layout);
  std::vector<int> flushes(layout.shard_count());
  absl::Time now = absl::UnixEpoch();
  // 1.5 seconds apart, a shard is due every 2: ten periods make ten turns each.
  for (; now <= absl::UnixEpoch() + absl::Seconds(100); now += absl::Milliseconds(1500)) {
    const EncodePlan plan = policy.PlanFor(1, false, /*due=*/{}, now);
    for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
      flushes[shard] += plan.Flushes(shard) ? 1 : 0;
    }
  }
  for (const int count : flushes) CHECK((count == 9 || count == 10));
}

TEST_CASE("a shard that is not in the push when its turn comes sends its residual with its next",
          "[encode]") {
  const ParamLayout layout = Layout();
  CodecPolicy::Options options = OptionsFor("topk:0.01");
  options.flush_period = absl::Seconds(10);
  CodecPolicy policy(options, &layout);
  absl::Time now = absl::UnixEpoch();
  std::vector<bool> due(layout.shard_count(), true);
  (void)policy.PlanFor(1, false, due, now);
  due[0] = due[3] = false;
  const EncodePlan without = policy.PlanFor(1, false, due, now + absl::Seconds(10));
  CHECK(without.flush == std::vector<bool>{false, true, true, false, true});
  const EncodePlan with = policy.PlanFor(1, false, {}, now + absl::Seconds(10));
  CHECK(with.flush == std::vector<bool>{true, false, false, true, false});
  CHECK(policy.PlanFor(1, false, {}, now + absl::Seconds(10)).flush.empty());
}

}  // namespace recon
