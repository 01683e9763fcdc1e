#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/manifest.pb.h"

namespace recon {

// Tensor shapes of well-known models, for load tests: "resnet50" (torchvision; He et al., CVPR 2016),
// "vgg16" (Simonyan and Zisserman, ICLR 2015), "bert-base" (Devlin et al., NAACL 2019, with pooler), or a
// text file with one tensor a line: its name, then its dimensions, separated by blanks; # starts a
// comment. Norms and biases are in group "no_decay". InvalidArgument or NotFound, with file and line.
// The model is named "synthetic:NAME_OR_FILE".
absl::StatusOr<ModelSpec> ShapesOf(const std::string& name_or_file);
// Whether it is one of the three names.
bool IsWellKnown(absl::string_view name);

}  // namespace recon
