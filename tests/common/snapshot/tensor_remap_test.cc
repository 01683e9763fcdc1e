#include "common/snapshot/tensor_remap.h"

#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/storage/local_store.h"
#include "server/durability/snapshot_writer.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::string group;
};

ModelSpec ModelOf(const std::vector<Tensor>& tensors) {
  ModelSpec model;
  model.set_name("model");
  for (const Tensor& tensor : tensors) {
    TensorSpec* spec = model.add_tensors();
    spec->set_name(tensor.name);
    spec->set_group(tensor.group);
    for (const uint64_t dimension : tensor.shape) spec->add_shape(dimension);
  }
  return model;
}

// A value that says whose it is.
float ValueOf(const std::string& name, uint64_t i) {
  return static_cast<float>(name[0]) * 131072 + static_cast<float>(i);
}

// A snapshot in which each tensor has its own values.
struct Written {
  TempDir directory;
  std::unique_ptr<LocalStore> store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Manifest manifest;
  std::shared_ptr<const CarriedTensors> carried;

  explicit Written(const std::vector<Tensor>& tensors) {
    const ParamLayout layout = *ParamLayout::Create(ModelOf(tensors));
    std::vector<float> flat(layout.params());
    for (const TensorPlacement& tensor : layout.tensors()) {
      for (uint64_t i = 0; i < tensor.size; ++i) flat[tensor.offset + i] = ValueOf(tensor.name, i);
    }
    std::vector<ShardCut> cuts(layout.shard_count());
    for (uint32_t s = 0; s < layout.shard_count(); ++s) {
      cuts[s].pages = {{PageRef::Zeroed()}};
      bool cloned;
      std::copy_n(&flat[layout.shards()[s].offset], layout.shards()[s].size,
                  cuts[s].pages[0][0].Writable(&cloned));
    }
    SafetensorsEntry scale;
    scale.name = "scale";
    scale.dtype = "F16";
    carried = std::make_shared<const CarriedTensors>(
        *CarriedTensors::Make({{scale, std::string("\x00\xc0", 2)}}, {{"head", "wide"}}));
    SnapshotWriter writer(store.get(), {});
    writer.SetCarried(carried);
    SnapshotWriter::Description description;
    description.optimizer = "sgd";
    manifest = *writer.Write(layout, std::move(cuts), description);
  }
};

const std::vector<Tensor> kTensors = {{"bias", {7}, "no_decay"},
                                      {"wide", {301, 301}, ""},
                                      {"cube", {3, 5, 7001}, ""},
                                      {"also", {70'000}, "no_decay"}};

}  // namespace

TEST_CASE("a snapshot's parameters come in any order and groups, whatever pages they cross",
          "[tensor_remap]") {
  const Written written(kTensors);
  const SnapshotReader reader(written.store.get());
  std::vector<Tensor> tensors = kTensors;
  tensors.push_back({"head", {301, 301}, ""});  // An alias of "wide".
  tensors.push_back({"scale", {}, ""});         // A scalar, which was carried along until now.
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(tensors.begin(), tensors.end(), random);
    for (Tensor& tensor : tensors) tensor.group = random() % 2 == 0 ? "even" : "odd";
    const ParamLayout layout = *ParamLayout::Create(ModelOf(tensors));
    const auto remap = TensorRemap::Create(reader, written.manifest, written.carried, layout);
    REQUIRE(remap.ok());
    std::vector<float> flat;
    for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
      const auto pages = remap->ReadShard(shard);
      REQUIRE(pages.ok());
      const float* values = pages->front().data();
      flat.insert(flat.end(), values, values + layout.shards()[shard].size);
    }
    for (const TensorPlacement& tensor : layout.tensors()) {
      const std::string whose = tensor.name == "head" ? "wide" : tensor.name;
      size_t wrong = 0;
      for (uint64_t i = 0; i < tensor.size; ++i) {
        wrong += flat[tensor.offset + i] != (whose == "scale" ? -2.0f : ValueOf(whose, i)) ? 1 : 0;
      }
      INFO(round << " " << tensor.name);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("all that keeps a snapshot from being a model's parameters is said at once", "[tensor_remap]") {
  const Written written(kTensors);
  const ModelSpec model =
      ModelOf({{"bias", {7}, ""}, {"wide", {301 * 301}, ""}, {"new", {2, 2}, ""}, {"also", {70'000}, ""}});
  const std::string differences =
      absl::StrJoin(DifferencesTo(model, written.manifest, written.carried.get()), "\n");
  CHECK(differences ==
        "another shape: wide is [301,301], expected [90601]\n"
        "missing: new [2,2]\n"
        "left over: cube F32 [3,5,7001]");
  const auto refused = TensorRemap::Create(SnapshotReader(written.store.get()), written.manifest,
                                           written.carried, *ParamLayout::Create(model));
  CHECK(absl::IsInvalidArgument(refused.status()));
  CHECK(absl::StrContains(refused.status().message(), "missing: new [2,2]; left over: cube"));
  CHECK(DifferencesTo(ModelOf(kTensors), written.manifest, nullptr).empty());
  const Written scalar({{"wide", {3, 3}, ""}, {"temperature", {}, ""}});
  CHECK(DifferencesTo(ModelOf({{"wide", {3, 3}, ""}}), scalar.manifest, nullptr) ==
        std::vector<std::string>{"left over: temperature F32 []"});  // It was trained.
}

TEST_CASE("a long list of differences is cut, and says how many are left", "[tensor_remap]") {
  const std::vector<std::string> ten(10, "missing: x");
  CHECK(JoinDifferences(ten, "; ", 25) == "missing: x; missing: x; and 8 more");
  CHECK(absl::StrContains(JoinDifferences(ten, "; ", 1000), "missing: x; missing: x"));
  CHECK(JoinDifferences({}, "; ", 10).empty());
}

}  // namespace recon
