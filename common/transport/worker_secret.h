#pragma once

#include <array>
#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace recon {

// What the process of a worker shows, and nobody else can: random bytes, which it sends with each control
// call and at the beginning of each connection for frames. No status, log or snapshot has them.
//
// The process' incarnation, which they all have, is the beginning of the secret's SHA-256. So each server of
// a job checks the one by the other without having been told of either, also after a restart.
class WorkerSecret {
 public:
  static constexpr size_t kBytes = 16;

  // From the operating system.
  static WorkerSecret Draw();
  // InvalidArgument for another number of bytes.
  static absl::StatusOr<WorkerSecret> FromBytes(absl::string_view bytes);

  absl::string_view bytes() const { return {bytes_.data(), bytes_.size()}; }
  // Never 0.
  Incarnation incarnation() const;

 private:
  WorkerSecret() = default;

  std::array<char, kBytes> bytes_{};
};

}  // namespace recon
