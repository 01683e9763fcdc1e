#include "server/job_claim.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {

absl::Status ClaimForJob(ObjectStore* store, uint64_t job_id) {
  constexpr char kPrefix[] = "jobs/";
  const std::string ours = absl::StrCat(kPrefix, absl::Hex(job_id, absl::kZeroPad16));
  const auto check = [&]() -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const std::vector<std::string> claims, store->List(kPrefix));
    for (const std::string& claim : claims) {
      if (claim == ours) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(store->Describe(), " belongs to another job (", claim,
                       "): choose another, or delete that object if the job is gone for good"));
    }
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(check());
  const absl::Status put = store->PutIfAbsent(ours, "");
  if (absl::IsAlreadyExists(put)) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(put);
  // Whoever came at the same time sees ours, or we see theirs.
  const absl::Status alone = check();
  if (!alone.ok()) RECON_RETURN_IF_ERROR(store->Delete(ours));
  return alone;
}

}  // namespace recon
