#include "common/base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/machine_limits.h"

namespace recon {

absl::Status StartThread(std::function<void()> body, std::thread* thread) {
  RECON_CHECK(!thread->joinable(), "a thread is started where one runs");
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {  // The library's only way to say so.
    return absl::ResourceExhaustedError(MissingThread(error));
  }
  return absl::OkStatus();
}

}  // namespace recon
