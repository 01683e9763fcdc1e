#include "tools/reconctl/recorded_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::json;

absl::Status NotAModel() {
  return absl::DataLossError(absl::StrCat("safetensors: ", kModelMetadata, " is not a model"));
}

// The texts of an object's members of these names; DataLoss if one is none.
absl::StatusOr<std::pair<std::string, std::string>> Texts(const Json& json, const char* first,
                                                          const char* second) {
  if (!json.is_object() || !json.contains(first) || !json[first].is_string() || !json.contains(second) ||
      !json[second].is_string()) {
    return NotAModel();
  }
  return std::make_pair(json[first].get<std::string>(), json[second].get<std::string>());
}

// DataLoss for what is longer, deeper or larger than a model can be.
absl::StatusOr<Json> ParseBounded(const std::string& text) {
  // A tensor of a model is an object with two or three texts and their names.
  constexpr size_t kValuesMax = size_t{16} * limits::kFileTensorsMax;
  constexpr int kDepthMax = 4;
  if (text.size() > limits::kControlMessageBytesMax) return NotAModel();
  size_t values = 0;
  bool fits = true;
  const auto count = [&](int depth, Json::parse_event_t, Json&) {
    fits = fits && depth <= kDepthMax && ++values <= kValuesMax;
    return fits;
  };
  Json json = Json::parse(text, count, /*allow_exceptions=*/false);
  if (!fits || !json.is_object()) return NotAModel();
  return json;
}

}  // namespace

std::string EncodeRecordedModel(const ModelSpec& model, const CarriedTensors* carried) {
  Json json = {{"name", model.name()}, {"tensors", Json::array()}};
  for (const TensorSpec& tensor : model.tensors()) {
    json["tensors"].push_back({{"name", tensor.name()}, {"group", tensor.group()}});
  }
  if (carried == nullptr) return json.dump();
  json["carried"] = Json::array();
  for (const SafetensorsEntry& tensor : carried->tensors()) json["carried"].push_back(tensor.name);
  json["aliases"] = Json::array();
  for (const auto& [name, tensor] : carried->aliases()) {
    json["aliases"].push_back({{"name", name}, {"tensor", tensor}});
  }
  return json.dump();
}

absl::StatusOr<std::optional<RecordedModel>> ReadRecordedModel(
    const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(kModelMetadata);
  if (found == metadata.end()) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(Json json, ParseBounded(found->second));
  if (!json.contains("name") || !json["name"].is_string() || !json.contains("tensors")) return NotAModel();
  RecordedModel recorded;
  recorded.model.set_name(json["name"].get<std::string>());
  // Files of earlier versions have no lists of these.
  for (const char* list : {"tensors", "carried", "aliases"}) {
    if (json.contains(list) && !json[list].is_array()) return NotAModel();
  }
  for (const Json& tensor : json["tensors"]) {
    RECON_ASSIGN_OR_RETURN(const auto texts, Texts(tensor, "name", "group"));
    TensorSpec* spec = recorded.model.add_tensors();
    spec->set_name(texts.first);
    spec->set_group(texts.second);
  }
  for (const Json& name : json["carried"]) {
    if (!name.is_string()) return NotAModel();
    recorded.carried.insert(name.get<std::string>());
  }
  for (const Json& alias : json["aliases"]) {
    RECON_ASSIGN_OR_RETURN(const auto texts, Texts(alias, "name", "tensor"));
    recorded.aliases.insert(texts);
  }
  return std::optional<RecordedModel>(std::move(recorded));
}

}  // namespace recon
