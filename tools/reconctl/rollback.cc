#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/plain_text.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

// A restart of the server from a large state, and replay.
constexpr absl::Duration kDoneTimeout = absl::Minutes(10);
constexpr absl::Duration kPoll = absl::Milliseconds(50);

// WORKER:STEP; a worker's name may have colons.
absl::StatusOr<PushName> ParsePush(const std::string& text, uint64_t incarnation) {
  const size_t colon = text.rfind(':');
  PushName push;
  uint64_t step = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &step)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no push: expected WORKER:STEP, such as gpu0:1234"));
  }
  push.set_worker(text.substr(0, colon));
  push.set_step(step);
  push.set_incarnation(incarnation);
  return push;
}

std::string Describe(const RollbackReply& reply) {
  const RollbackRecord& plan = reply.plan();
  std::string text =
      absl::StrCat("rollback ", EscapeControls(plan.reason()), ": begins with snapshot ", plan.generation(),
                   " (sequence ", reply.snapshot_sequence(), " of ", reply.last_sequence(), ")");
  if (reply.pushes_again() > 0) absl::StrAppend(&text, ", applies ", reply.pushes_again(), " pushes again");
  if (plan.left_out_size() > 0) {
    absl::StrAppend(&text, ", leaves out ", plan.left_out_size(), " (", reply.frames_left_out(), " records)");
  }
  absl::StrAppend(&text, plan.keep_completions()
                             ? "; samples completed since stay completed"
                             : absl::StrCat("; ", reply.samples_again(), " samples are trained again"));
  return absl::StrCat(text, "\nit could go back to sequence ", reply.oldest_sequence(), ", and to snapshot ",
                      reply.oldest_generation(), "\n");
}

// Until the server is back with it, or without.
absl::StatusOr<StatusReply> AwaitDone(const RollbackReply& planned, ControlClient* client) {
  const absl::Time give_up = Now() + kDoneTimeout;
  absl::Status last;
  while (Now() < give_up) {
    absl::StatusOr<StatusReply> status = client->Status();
    last = status.status();
    const bool known = status.ok() && status->rollback().history() >= planned.plan().history();
    if (known && status->rollback().done()) return status;
    if (status.ok() && !known && status->cluster_epoch() > planned.cluster_epoch()) {
      return absl::DataLossError(
          "the server has given the rollback up, and goes on from where it was; its log says why");
    }
    Sleep(kPoll);
  }
  return absl::UnavailableError(
      absl::StrCat("the rollback will be done, but the server has not been back for ",
                   absl::FormatDuration(kDoneTimeout), ": ", last.message()));
}

}  // namespace

absl::Status RollBackServer(const RollbackTarget& target) {
  RollbackRequest request;
  request.set_generation(target.generation);
  request.set_sequence(target.sequence);
  request.set_keep_completions(target.keep_samples);
  request.set_dry_run(target.dry_run);
  for (const std::string& push : target.pushes) {
    RECON_ASSIGN_OR_RETURN(*request.add_undo(), ParsePush(push, target.incarnation));
  }
  RECON_RETURN_IF_ERROR(CheckAddress("--server", target.server.address));
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(target.server.address, target.server.tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(target.server.tls));
  ControlClient client(channel, absl::Seconds(3), caller);
  RECON_ASSIGN_OR_RETURN(const RollbackReply planned, client.Rollback(request));
  if (target.dry_run) {
    std::cout << (target.server.json ? ToJson(planned) + "\n" : Describe(planned));
    return absl::OkStatus();
  }
  if (!target.server.json) std::cout << Describe(planned) << std::flush;
  RECON_ASSIGN_OR_RETURN(const StatusReply status, AwaitDone(planned, &client));
  if (target.server.json) {
    RollbackReply done = planned;
    *done.mutable_plan() = status.rollback();
    done.set_cluster_epoch(status.cluster_epoch());
    std::cout << ToJson(done) << "\n";
  } else {
    std::cout << "done: snapshot " << status.rollback().published() << " has that state, cluster epoch "
              << status.cluster_epoch() << "\n";
  }
  return absl::OkStatus();
}

}  // namespace recon
