#pragma once

#include <string>

#include "absl/strings/str_format.h"
#include "proto/job.pb.h"

namespace recon {

// Under which key the control database has a completed split: "done/<kind>/<data epoch>/<split>", numbers as
// 8 hex digits. The keys' order is that of kind, data epoch and split.
inline constexpr char kCompletionPrefix[] = "done/";

inline std::string CompletionKey(const Completion& completion) {
  return absl::StrFormat("%s%d/%08x/%08x", kCompletionPrefix, completion.kind(), completion.data_epoch(),
                         completion.split());
}

}  // namespace recon
