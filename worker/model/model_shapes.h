#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/manifest.pb.h"

namespace recon {

// Tensor shapes of well-known models, for load tests: "resnet50" (torchvision; He et al., CVPR 2016),
// "vgg16" (Simonyan and Zisserman, ICLR 2015), "bert-base" (Devlin et al., NAACL 2019, with pooler), or a
// text file with one tensor a line: its name, then its dimensions, separated by blanks; # starts a
// comment. Norms and biases are in group "no_decay". InvalidArgument or NotFound, with file and line.
absl::StatusOr<ModelSpec> ShapesOf(const std::string& name_or_file);

}  // namespace recon
