#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/manifest.pb.h"

namespace recon {

// Which tensors of a file or a snapshot a model's parameters are, by their names. Pure.

struct OfferedTensor {
  std::string name;
  std::string dtype;  // As safetensors names them.
  std::vector<uint64_t> shape;
  // It may be none of the model's; otherwise that is a difference.
  bool may_stay = false;
};

// Whether a file's tensor can be no parameter, or is none as a rule: another type, a scalar (a counter, say),
// or without values.
bool IsCarried(const OfferedTensor& tensor);

// Names that stand for other tensors (tied weights): name -> the tensor.
using TensorAliases = std::map<std::string, std::string>;

struct TensorMatch {
  // For each tensor of the model, in its order, the offered one: an index.
  std::vector<size_t> source;
  // The offered ones that are none of the model's.
  std::vector<size_t> rest;
  // All that is missing, left over, or of another shape or type, one text each. Only if there is none the
  // above counts.
  std::vector<std::string> differences;
};

// Order, groups and the model's name do not count. A tensor that the model has and nobody offers may be an
// alias of one that is offered; an alias that is offered and not the model's is in the rest.
TensorMatch MatchTensors(const ModelSpec& model, const std::vector<OfferedTensor>& offered,
                         const TensorAliases& aliases);

// Whether both have tensors of the same names and shapes.
bool ModelsHaveSameTensors(const ModelSpec& a, const ModelSpec& b);

// Differences as one text of at most about `bytes_max` bytes, which says how many are not in it.
std::string JoinDifferences(const std::vector<std::string>& differences, absl::string_view separator,
                            size_t bytes_max);

}  // namespace recon
