#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/owned_fd.h"
#include "common/base/plain_text.h"
#include "common/base/process.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

// From the answer to the end of the process, which only frees what it has.
constexpr absl::Duration kEndTimeout = absl::Seconds(60);
constexpr absl::Duration kPoll = absl::Milliseconds(50);

// Of a process that this one sees, until it is no more; of another one, until nobody listens there.
absl::Status WaitForEnd(const DrainReply& drained, ControlClient* client) {
  const std::string numbers = ProcessNamespace();
  if (!numbers.empty() && drained.process_namespace() == numbers) {
    const OwnedFd process(
        static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(drained.process()), 0)));
    if (process.get() < 0 && errno == ESRCH) return absl::OkStatus();
    pollfd ended{process.get(), POLLIN, 0};
    if (process.get() >= 0 && poll(&ended, 1, static_cast<int>(kEndTimeout / absl::Milliseconds(1))) == 1) {
      return absl::OkStatus();
    }
  }
  const absl::Time give_up = Now() + kEndTimeout;
  while (Now() < give_up) {
    if (absl::IsUnavailable(client->Status().status())) return absl::OkStatus();
    Sleep(kPoll);
  }
  return absl::InternalError(absl::StrCat("the server is drained, but its process ", drained.process(),
                                          " has not ended in ", absl::FormatDuration(kEndTimeout)));
}

}  // namespace

absl::Status DrainServer(const ServerTarget& target) {
  RECON_RETURN_IF_ERROR(CheckAddress("--server", target.address));
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(target.address, target.tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(target.tls));
  ControlClient client(channel, absl::Seconds(3), caller);
  RECON_RETURN_IF_ERROR(client.Status().status());  // Afterwards it was there.
  const absl::StatusOr<DrainReply> drained = client.Drain();
  if (absl::IsUnavailable(drained.status())) {
    return absl::InternalError(absl::StrCat("the server ended before it could say what came of the drain: ",
                                            drained.status().message()));
  }
  RECON_RETURN_IF_ERROR(drained.status());
  RECON_RETURN_IF_ERROR(WaitForEnd(*drained, &client));
  if (target.json) std::cout << ToJson(*drained) << "\n";
  if (!drained->snapshot_error().empty()) {
    return absl::InternalError(
        absl::StrCat("the server has ended, but its last snapshot failed: ", drained->snapshot_error()));
  }
  if (target.json) return absl::OkStatus();
  std::cout << "drained: the server has ended; ";
  if (drained->generation() == 0) {
    std::cout << "there was nothing to save\n";
  } else {
    std::cout << "snapshot " << drained->generation() << ", root " << EscapeControls(drained->state_root())
              << "\n";
  }
  return absl::OkStatus();
}

}  // namespace recon
