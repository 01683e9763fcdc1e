#include "worker/model/model_shapes.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/regular_file.h"

namespace recon {
namespace {

// A model of a hundred thousand tensors has a few MiB of names.
constexpr size_t kShapesBytesMax = size_t{64} << 20;

void Add(ModelSpec* spec, const std::string& name, std::initializer_list<uint64_t> shape) {
  TensorSpec* tensor = spec->add_tensors();
  tensor->set_name(name);
  for (const uint64_t dimension : shape) tensor->add_shape(dimension);
  if (shape.size() == 1) tensor->set_group("no_decay");
}

// weight and bias of one width.
void AddNorm(ModelSpec* spec, const std::string& name, uint64_t width) {
  Add(spec, name + ".weight", {width});
  Add(spec, name + ".bias", {width});
}

void AddLinear(ModelSpec* spec, const std::string& name, uint64_t in, uint64_t out) {
  Add(spec, name + ".weight", {out, in});
  Add(spec, name + ".bias", {out});
}

void AddResNet50(ModelSpec* spec) {
  Add(spec, "conv1.weight", {64, 3, 7, 7});
  AddNorm(spec, "bn1", 64);
  const int blocks[4] = {3, 4, 6, 3};
  uint64_t in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = absl::StrCat("layer", stage + 1, ".", block);
      Add(spec, name + ".conv1.weight", {width, in, 1, 1});
      AddNorm(spec, name + ".bn1", width);
      Add(spec, name + ".conv2.weight", {width, width, 3, 3});
      AddNorm(spec, name + ".bn2", width);
      Add(spec, name + ".conv3.weight", {4 * width, width, 1, 1});
      AddNorm(spec, name + ".bn3", 4 * width);
      if (block == 0) {
        Add(spec, name + ".downsample.0.weight", {4 * width, in, 1, 1});
        AddNorm(spec, name + ".downsample.1", 4 * width);
      }
      in = 4 * width;
    }
  }
  AddLinear(spec, "fc", 2048, 1000);
}

void AddVgg16(ModelSpec* spec) {
  uint64_t in = 3;
  int layer = 0;
  for (const uint64_t out : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    Add(spec, absl::StrCat("features.", layer, ".weight"), {out, in, 3, 3});
    Add(spec, absl::StrCat("features.", layer, ".bias"), {out});
    in = out;
    ++layer;
  }
  AddLinear(spec, "classifier.0", 512 * 7 * 7, 4096);
  AddLinear(spec, "classifier.3", 4096, 4096);
  AddLinear(spec, "classifier.6", 4096, 1000);
}

void AddBertBase(ModelSpec* spec) {
  constexpr uint64_t kHidden = 768;
  Add(spec, "embeddings.word.weight", {30522, kHidden});
  Add(spec, "embeddings.position.weight", {512, kHidden});
  Add(spec, "embeddings.token_type.weight", {2, kHidden});
  AddNorm(spec, "embeddings.norm", kHidden);
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = absl::StrCat("encoder.", layer);
    for (const char* part : {".query", ".key", ".value", ".attention_output"}) {
      AddLinear(spec, name + part, kHidden, kHidden);
    }
    AddNorm(spec, name + ".attention_norm", kHidden);
    AddLinear(spec, name + ".intermediate", kHidden, 4 * kHidden);
    AddLinear(spec, name + ".output", 4 * kHidden, kHidden);
    AddNorm(spec, name + ".output_norm", kHidden);
  }
  AddLinear(spec, "pooler", kHidden, kHidden);
}

absl::StatusOr<ModelSpec> ReadShapesFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kShapesBytesMax);
  if (absl::IsInvalidArgument(text.status())) {
    return absl::InvalidArgumentError(absl::StrCat("--model synthetic:", text.status().message()));
  }
  if (!text.ok()) {
    return absl::NotFoundError(
        absl::StrCat("--model synthetic:", path, ": neither resnet50, vgg16, bert-base nor a readable file"));
  }
  ModelSpec spec;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    const absl::string_view content = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(content, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    TensorSpec* tensor = spec.add_tensors();
    tensor->set_name(words[0]);
    for (size_t i = 1; i < words.size(); ++i) {
      uint64_t dimension = 0;
      if (!absl::SimpleAtoi(words[i], &dimension) || dimension == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", number, ": '", words[i], "' is not a dimension"));
      }
      tensor->add_shape(dimension);
    }
    if (words.size() == 2) tensor->set_group("no_decay");
  }
  if (spec.tensors_size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": no tensor in it"));
  return spec;
}

}  // namespace

bool IsWellKnown(absl::string_view name) {
  return name == "resnet50" || name == "vgg16" || name == "bert-base";
}

absl::StatusOr<ModelSpec> ShapesOf(const std::string& name_or_file) {
  ModelSpec spec;
  if (name_or_file == "resnet50") {
    AddResNet50(&spec);
  } else if (name_or_file == "vgg16") {
    AddVgg16(&spec);
  } else if (name_or_file == "bert-base") {
    AddBertBase(&spec);
  } else {
    absl::StatusOr<ModelSpec> read = ReadShapesFile(name_or_file);
    if (!read.ok()) return read;
    spec = *std::move(read);
  }
  spec.set_name(absl::StrCat("synthetic:", name_or_file));
  return spec;
}

}  // namespace recon
