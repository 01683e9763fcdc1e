#include "server/control/proposal.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace recon {

absl::Status CheckProposal(const RegisterRequest& request,
                           const std::map<std::string, std::string>& settings) {
  std::map<std::string, std::string> wanted;  // As the settings have them: more than one value in a line.
  for (const FlagValue& flag : request.proposed()) {
    std::string& values = wanted[absl::StrCat("--", flag.name())];
    absl::StrAppend(&values, values.empty() ? "" : " ", flag.value());
  }
  std::string differences;
  for (const auto& [flag, value] : wanted) {
    const auto ours = settings.find(flag);
    if (ours == settings.end()) continue;
    const std::string& has = ours->second;
    double a = 0, b = 0;
    const bool same_number = absl::SimpleAtod(has, &a) && absl::SimpleAtod(value, &b) && a == b;
    if (has == value || same_number) continue;
    absl::StrAppend(&differences, differences.empty() ? "" : ", ", flag, " ", value, " instead of ",
                    has.empty() ? "nothing" : has);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the script's settings are not the job's: ", differences,
                   ": give the server no such flags, or the same, and all workers one script"));
}

}  // namespace recon
