#include "common/tensor/param_layout.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/tensor/shard_assignment.h"

namespace recon {
namespace {

void AddTensor(ModelSpec* model, const std::string& name, const std::vector<uint64_t>& shape,
               const std::string& group = "") {
  TensorSpec* tensor = model->add_tensors();
  tensor->set_name(name);
  for (const uint64_t dimension : shape) tensor->add_shape(dimension);
  tensor->set_group(group);
}

ModelSpec SampleModel() {
  ModelSpec model;
  model.set_name("m");
  AddTensor(&model, "a", {250, 1000});
  AddTensor(&model, "a.bias", {10}, "no_decay");
  AddTensor(&model, "b", {100});
  AddTensor(&model, "scalar", {}, "no_decay");
  return model;
}

}  // namespace

TEST_CASE("shards are spread over servers by size, neighbours apart", "[param_layout]") {
  const ParamLayout layout = *ParamLayout::Create(SampleModel());
  CHECK(AssignShards(layout, 1) == std::vector<uint32_t>(5, 0));
  // Three whole ones, the rest of a group, and 11 parameters.
  CHECK(AssignShards(layout, 2) == std::vector<uint32_t>{0, 1, 0, 1, 1});
  CHECK(AssignShards(layout, 8) == std::vector<uint32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("groups are contiguous, shards tile them and never cross one", "[param_layout]") {
  const auto layout = ParamLayout::Create(SampleModel());
  REQUIRE(layout.ok());
  CHECK(layout->params() == 250'111);
  CHECK(layout->groups() == std::vector<std::string>{"default", "no_decay"});
  CHECK(layout->tensors()[0].offset == 0);
  CHECK(layout->tensors()[2].offset == 250'000);
  CHECK(layout->tensors()[1].offset == 250'100);
  CHECK(layout->tensors()[3].offset == 250'110);
  CHECK(layout->tensors()[3].size == 1);
  REQUIRE(layout->shard_count() == 5);
  uint64_t at = 0;
  for (const ShardPlacement& shard : layout->shards()) {
    CHECK(shard.offset == at);
    CHECK(shard.size <= kShardParamsMax);
    at += shard.size;
    uint32_t in_pages = 0;
    for (uint32_t page = 0; page < shard.pages(); ++page) in_pages += shard.PageSize(page);
    CHECK(in_pages == shard.size);
  }
  CHECK(at == layout->params());
  CHECK(layout->shards()[4].size == 11);
  CHECK(layout->shards()[4].group == 1);
}

TEST_CASE("malformed models are refused with the tensor's name", "[param_layout]") {
  const auto refused = [](const ModelSpec& model, const std::string& word) {
    const absl::Status status = ParamLayout::Create(model).status();
    INFO(status.message());
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), word));
  };
  ModelSpec empty;
  empty.set_name("m");
  refused(empty, "0 tensors");
  ModelSpec unnamed = SampleModel();
  unnamed.set_name("");
  refused(unnamed, "name");
  ModelSpec twice = SampleModel();
  AddTensor(&twice, "b", {1});
  refused(twice, "two tensors are named b");
  ModelSpec zero = SampleModel();
  AddTensor(&zero, "z", {3, 0});
  refused(zero, "tensor z has shape [3,0]");
  ModelSpec huge = SampleModel();
  AddTensor(&huge, "h", {uint64_t{1} << 40, uint64_t{1} << 40});
  refused(huge, "tensor h");
  ModelSpec sum = SampleModel();
  AddTensor(&sum, "x", {limits::kParametersMax});
  refused(sum, "more than");
  ModelSpec rank = SampleModel();
  AddTensor(&rank, "r", std::vector<uint64_t>(17, 1));
  refused(rank, "17 dimensions");
  ModelSpec long_name = SampleModel();
  AddTensor(&long_name, std::string(300, 'n'), {1});
  refused(long_name, "300 bytes");
  ModelSpec mixed = SampleModel();
  mixed.mutable_tensors(0)->set_averaged(true);
  refused(mixed, "not averaged");
  ModelSpec typed = SampleModel();
  typed.mutable_tensors(0)->set_dtype("C64");
  refused(typed, "dtype C64");
  ModelSpec alias = SampleModel();
  alias.add_aliases()->set_name("tied");
  alias.mutable_aliases(0)->set_tensor("nowhere");
  refused(alias, "alias tied stands for nowhere");
  alias.mutable_aliases(0)->set_name("a");
  alias.mutable_aliases(0)->set_tensor("b");
  refused(alias, "a name in use");
}

TEST_CASE("two models differ by the first thing that does", "[param_layout]") {
  CHECK(ModelDifference(SampleModel(), SampleModel()).empty());
  ModelSpec other = SampleModel();
  other.mutable_tensors(0)->set_shape(1, 7);
  CHECK(ModelDifference(SampleModel(), other) == "tensor a has shape [250,7] instead of [250,1000]");
  other = SampleModel();
  other.mutable_tensors(2)->set_name("c");
  CHECK(ModelDifference(SampleModel(), other) == "tensor 2 is c instead of b");
  other = SampleModel();
  other.mutable_tensors(2)->set_group("g");
  CHECK(ModelDifference(SampleModel(), other) == "tensor b is in group g instead of default");
  other = SampleModel();
  other.mutable_tensors(2)->set_averaged(true);
  CHECK(ModelDifference(SampleModel(), other) == "tensor b is averaged instead of trained");
  other = SampleModel();
  AddTensor(&other, "d", {1});
  CHECK(ModelDifference(SampleModel(), other) == "5 tensors instead of 4");
}

}  // namespace recon
