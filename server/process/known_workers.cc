#include "server/process/known_workers.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/private_file.h"

namespace recon {

void KnownWorkers::Load() {
  std::ifstream file(path_);
  MutexLock lock(&mu_);
  for (std::string line; known_.size() < limits::kMembersMax && std::getline(file, line);) {
    uint64_t number = 0;
    if (absl::SimpleHexAtoi(line, &number) && number != 0) known_.push_back(Incarnation(number));
  }
}

bool KnownWorkers::Knows(Incarnation process) const {
  return std::find(known_.begin(), known_.end(), process) != known_.end();
}

bool KnownWorkers::Has(Incarnation process) const {
  MutexLock lock(&mu_);
  return Knows(process);
}

absl::Status KnownWorkers::Note(Incarnation process) {
  std::string text;
  {
    MutexLock lock(&mu_);
    if (Knows(process)) return absl::OkStatus();
    known_.push_back(process);
    if (known_.size() > limits::kMembersMax) known_.pop_front();
    for (const Incarnation known : known_) absl::StrAppend(&text, absl::Hex(known.value()), "\n");
  }
  return WriteOwnFile(path_, text, 0600);
}

}  // namespace recon
