#include "common/base/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/mutex.h"

namespace recon {
namespace {

struct Fault {
  int only_at = 0;  // 0 = every time.
  std::string action;
};

std::map<std::string, Fault> ParseFaults() {
  std::map<std::string, Fault> faults;
  const char* text = std::getenv("RECON_FAULT");
  if (text == nullptr) return faults;
  for (absl::string_view entry : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> rule = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const std::vector<std::string> place = absl::StrSplit(rule.first, ':');
    Fault fault;
    fault.action = rule.second;
    if (place.size() == 2 && !absl::SimpleAtoi(place[1], &fault.only_at)) continue;
    faults[place[0]] = fault;
  }
  return faults;
}

absl::Status Act(const char* name, const std::string& action) {
  LogWarn("fault point {}: {}", name, action);
  if (action == "kill") kill(getpid(), SIGKILL);
  if (action == "enospc")
    return absl::ResourceExhaustedError(absl::StrCat(name, ": No space left on device"));
  return absl::DataLossError(absl::StrCat(name, ": Input/output error"));
}

}  // namespace

absl::Status FaultPoint(const char* name) {
  static const auto& faults = *new std::map<std::string, Fault>(ParseFaults());
  static Mutex mu;
  static auto& counts ABSL_GUARDED_BY(mu) = *new std::map<std::string, int>();
  const auto fault = faults.find(name);
  if (fault == faults.end()) return absl::OkStatus();
  int count;
  {
    MutexLock lock(&mu);
    count = ++counts[name];
  }
  if (fault->second.only_at != 0 && fault->second.only_at != count) return absl::OkStatus();
  return Act(name, fault->second.action);
}

}  // namespace recon
