#include "worker/comm/step_mean.h"

#include <string>

#include "catch2/catch.hpp"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

// A gradient of four values, and a state of three.
ParamLayout SmallLayout() {
  ModelSpec model;
  model.set_name("means");
  TensorSpec* gradient = model.add_tensors();
  gradient->set_name("gradient/w");
  gradient->add_shape(4);
  TensorSpec* state = model.add_tensors();
  state->set_name("w");
  state->add_shape(3);
  state->set_group(kStateGroup);
  state->set_averaged(true);
  return *ParamLayout::Create(model);
}

Frame Reply(uint32_t shard, uint32_t count, uint64_t version, const std::vector<float>& values) {
  Frame frame;
  PartHeader part;
  part.shard = shard;
  part.count = count;
  part.version = version;
  frame.parts.push_back(part);
  frame.payloads.push_back(ByteChain::FromString(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))));
  return frame;
}

}  // namespace

TEST_CASE("a step's mean is complete when all shards that pushes have are there", "[mean]") {
  const ParamLayout layout = SmallLayout();
  StepMean mean(&layout);
  mean.Begin(6);
  CHECK_FALSE(mean.complete());
  // What is of another step is not taken.
  CHECK(mean.Take(Reply(0, 4, 6, {9, 9, 9, 9})).ok());
  CHECK_FALSE(mean.complete());
  CHECK(mean.Take(Reply(0, 4, 7, {1, 2, 3, 4})).ok());
  CHECK(mean.complete());
  CHECK(mean.values()[2] == 3);
  mean.Begin(7);
  CHECK_FALSE(mean.complete());
}

TEST_CASE("a sparse mean leaves nothing of the one before", "[mean]") {
  const ParamLayout layout = SmallLayout();
  StepMean mean(&layout);
  mean.Begin(0);
  REQUIRE(mean.Take(Reply(0, 4, 1, {1, 2, 3, 4})).ok());
  mean.Begin(1);
  SparseWriter writer(CodecId::kSparseFp32);
  const float value = 5;
  writer.AddPage(4, std::vector<uint16_t>{2}, &value);
  Frame reply = Reply(0, 4, 2, {});
  reply.parts[0].codec = static_cast<uint8_t>(CodecId::kSparseFp32);
  reply.payloads[0] = ByteChain::FromString(writer.Finish());
  REQUIRE(mean.Take(reply).ok());
  CHECK(std::vector<float>(mean.values().begin(), mean.values().begin() + 4) ==
        std::vector<float>{0, 0, 5, 0});
}

TEST_CASE("a mean says whether its step is open yet, or kept no more", "[mean]") {
  const ParamLayout layout = SmallLayout();
  StepMean mean(&layout);
  mean.Begin(3);
  CHECK(mean.Take(Reply(0, 4, 0, {})).ok());
  CHECK((mean.open() && !mean.gone() && !mean.complete()));
  mean.Begin(3);
  CHECK(mean.Take(Reply(0, 4, kNoVersion, {})).ok());
  CHECK((mean.gone() && !mean.complete()));
}

TEST_CASE("a reply of another model, of the state, or of too few bytes is refused", "[mean]") {
  const ParamLayout layout = SmallLayout();
  StepMean mean(&layout);
  mean.Begin(0);
  CHECK_FALSE(mean.Take(Reply(5, 4, 1, {1, 2, 3, 4})).ok());
  CHECK_FALSE(mean.Take(Reply(0, 3, 1, {1, 2, 3})).ok());
  CHECK_FALSE(mean.Take(Reply(1, 3, 1, {1, 2, 3})).ok());
  CHECK_FALSE(mean.Take(Reply(0, 4, 1, {1, 2, 3})).ok());
  CHECK_FALSE(mean.complete());
}

}  // namespace recon
