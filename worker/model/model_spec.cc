#include "worker/model/model_spec.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/model/mlp_model.h"
#include "worker/model/model_shapes.h"

namespace recon {
namespace {

constexpr char kMlp[] = "mlp:";
constexpr char kSynthetic[] = "synthetic:";

}  // namespace

bool NamesModel(absl::string_view name) {
  return absl::StartsWith(name, kMlp) || absl::StartsWith(name, kSynthetic) || IsWellKnown(name);
}

absl::StatusOr<ModelSpec> ModelSpecOf(const std::string& name) {
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, kMlp)) {
    RECON_ASSIGN_OR_RETURN(const MlpModel mlp, ParseMlp(std::string(rest)));
    return mlp.spec;
  }
  if (IsWellKnown(rest) || (absl::ConsumePrefix(&rest, kSynthetic) && !rest.empty())) {
    return ShapesOf(std::string(rest));
  }
  return absl::InvalidArgumentError(absl::StrCat("--model ", name,
                                                 ": expected mlp:SIZES, resnet50, vgg16, bert-base or "
                                                 "synthetic:SHAPES_FILE"));
}

}  // namespace recon
