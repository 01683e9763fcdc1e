#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/transport/connected_processes.h"
#include "proto/control.pb.h"
#include "server/membership/membership.h"

// Decisions of a registration that need nothing but the request and the members. Pure, but for lines in the
// log and for CheckName(), which remembers who waits for a name.
namespace recon {

// InvalidArgument, with the number and the limit, for what no worker says: every field is checked against
// common/base/limits.h, and the model makes a layout.
absl::Status CheckRegistration(const RegisterRequest& request);
// InvalidArgument for a worker that leaves the optimizer to the server: its model has nothing of the group
// `state`. FailedPrecondition for one whose state is of another history than the job's.
absl::Status CheckHasState(const RegisterRequest& request, uint64_t history);
// InvalidArgument for a step beyond limits::kStepMax.
absl::Status CheckNextStep(uint64_t next_step);
// The first step that the worker has not begun: what it was told before the server died, though older steps
// are under way.
uint64_t FirstNewStep(const RegisterRequest& request);

// A worker of this name is `worker`: whether the name is free for this process. Another one that is alive and
// connected keeps it: AlreadyExists if nobody asked for this name, else Aborted, and the worker asks again.
// The log says so once for each process that waits, once a minute at most. `peer`: from where the request
// came. `connected`: who has connections; null: not known.
absl::Status CheckName(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                       Membership* membership, const ConnectedProcesses* connected, absl::Time now);

// What the members know of a worker that registers, from `peer`.
Membership::Member MemberOf(const RegisterRequest& request, const std::string& peer);

// Where `worker` may find parameters besides on servers: limits::kPeersMax of the other workers that hand
// them out, have some and are not silent. Those who join one after the other are told different ones first.
std::vector<std::string> PeersFor(WorkerId worker, const Membership& membership, absl::Time now);

// InvalidArgument for a heartbeat beyond the limits.
absl::Status CheckHeartbeat(const HeartbeatRequest& request);

}  // namespace recon
