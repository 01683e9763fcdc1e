#include "server/control/registration.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/tensor/param_layout.h"
#include "server/scheduler/device_share.h"

namespace recon {
namespace {

absl::Status CheckCount(int count, size_t allowed, const char* what) {
  if (count <= static_cast<int>(allowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(count, " ", what, ", allowed are ", allowed));
}

absl::Status CheckTexts(const RegisterRequest& request) {
  for (const FlagValue& flag : request.proposed()) {
    if (flag.name().empty() || flag.name().size() > limits::kNameBytesMax ||
        flag.value().size() > limits::kNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a setting whose name has ", flag.name().size(),
                                                     " and whose value has ", flag.value().size(),
                                                     " bytes, allowed are ", limits::kNameBytesMax));
    }
  }
  for (const std::string* text : {&request.device(), &request.codec(), &request.data_fingerprint()}) {
    if (text->size() <= limits::kNameBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat("device, codec or data fingerprint of ", text->size(),
                                                   " bytes, allowed are ", limits::kNameBytesMax));
  }
  if (request.serves_parameters().empty()) return absl::OkStatus();
  return CheckAddress("--serve-parameters", request.serves_parameters());
}

}  // namespace

absl::Status CheckRegistration(const RegisterRequest& request) {
  if (request.name().empty() || request.name().size() > limits::kNameBytesMax || request.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker name '", request.name().substr(0, limits::kNameBytesMax), "' of ",
                     request.name().size(), " bytes (1 to ", limits::kNameBytesMax, " allowed), incarnation ",
                     request.incarnation(), " (0 is not)"));
  }
  RECON_RETURN_IF_ERROR(CheckPlain("worker name", request.name()));
  RECON_RETURN_IF_ERROR(CheckCount(request.held_size(), limits::kLeasesPerWorkerMax, "leases"));
  RECON_RETURN_IF_ERROR(CheckCount(request.proposed_size(), limits::kProposedFlagsMax, "settings"));
  RECON_RETURN_IF_ERROR(CheckTexts(request));
  const uint64_t first_new_step = FirstNewStep(request);
  if (first_new_step > limits::kStepMax || request.train_samples() > limits::kSamplesMax ||
      request.test_samples() > limits::kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "next step ", first_new_step, ", training samples ", request.train_samples(), ", test samples ",
        request.test_samples(), ": allowed are ", limits::kStepMax, " and ", limits::kSamplesMax));
  }
  return ParamLayout::Create(request.model()).status();
}

absl::Status CheckHasState(const RegisterRequest& request, uint64_t history) {
  const auto& tensors = request.model().tensors();
  if (std::none_of(tensors.begin(), tensors.end(),
                   [](const TensorSpec& tensor) { return tensor.group() == kStateGroup; })) {
    return absl::InvalidArgumentError(
        "the workers of this job have the optimizer (--optimizer mean), and this one leaves it to the "
        "server: "
        "a script says optimizer_on='workers' to join()");
  }
  if (request.state().next() == 0 || request.history() == history) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job has gone back to an earlier snapshot, and this worker's state is of what came after it: start "
      "the worker again, it takes the job's state then");
}

absl::Status CheckNextStep(uint64_t next_step) {
  if (next_step <= limits::kStepMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("next step ", next_step, ", allowed are ", limits::kStepMax));
}

uint64_t FirstNewStep(const RegisterRequest& request) {
  return std::max(request.next_step(), request.first_new_step());
}

absl::Status CheckName(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                       Membership* membership, const ConnectedProcesses* connected, absl::Time now) {
  const Incarnation newer(request.incarnation());
  if (!membership->HeldByAnother(worker, newer, now)) return absl::OkStatus();
  const Membership::Member& holder = *membership->Find(worker);
  const std::string age = absl::FormatDuration(absl::Trunc(now - holder.last_heard, absl::Milliseconds(1)));
  if (request.name_is_drawn()) {
    return absl::AlreadyExistsError(absl::StrCat("the name ", request.name(), " is that of the worker at ",
                                                 holder.peer, ", heard of ", age, " ago"));
  }
  // One that was killed has lost its connections. One that stands still will be silent.
  if (connected != nullptr && connected->Has(holder.incarnation)) {
    if (membership->NoteRival(worker, newer, peer, now)) {
      LogWarn(
          "worker {}: the process at {} waits for the name of the one at {}, which is connected: if both "
          "were meant to run, give them two names",
          request.name(), peer, holder.peer);
    }
    return absl::AbortedError(absl::StrCat("the name ", request.name(), " is that of the worker at ",
                                           holder.peer, ", which is connected and was heard of ", age,
                                           " ago: this one waits until that has ended or is silent; if both "
                                           "are meant to run, give them two names"));
  }
  LogWarn(
      "worker {}: the process at {} replaces the one at {}, which was heard of {} ago and has no connection: "
      "if both "
      "were meant to run, give them two names",
      request.name(), peer, holder.peer, age);
  return absl::OkStatus();
}

Membership::Member MemberOf(const RegisterRequest& request, const std::string& peer) {
  Membership::Member member;
  member.name = request.name();
  member.incarnation = Incarnation(request.incarnation());
  member.device = request.device();
  member.codec = request.codec();
  member.simulated = request.simulated();
  member.serves_parameters = request.serves_parameters();
  member.next_step = request.next_step();
  // Of a server that has been restarted: whoever has steps behind it.
  member.computes = FirstNewStep(request) > 0;
  member.peer = peer;
  return member;
}

std::vector<std::string> PeersFor(WorkerId worker, const Membership& membership, absl::Time now) {
  std::vector<std::string> peers;
  for (const auto& [id, member] : membership.members()) {
    // Who has computed a step has parameters.
    if (id == worker || member.gone || membership.suspect(member, now) || member.serves_parameters.empty() ||
        member.progress.steps() == 0) {
      continue;
    }
    peers.push_back(member.serves_parameters);
  }
  if (!peers.empty()) {
    const auto first = static_cast<std::ptrdiff_t>(worker.value() % peers.size());
    std::rotate(peers.begin(), peers.begin() + first, peers.end());
  }
  if (peers.size() > limits::kPeersMax) peers.resize(limits::kPeersMax);
  return peers;
}

absl::Status CheckHeartbeat(const HeartbeatRequest& request) {
  RECON_RETURN_IF_ERROR(CheckNextStep(request.next_step()));
  const WorkerProgress& progress = request.progress();
  if (progress.codec().size() > limits::kProgressTextBytesMax ||
      progress.diverged().size() > limits::kProgressTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("codec of ", progress.codec().size(),
                                                   " and divergence of ", progress.diverged().size(),
                                                   " bytes, allowed are ", limits::kProgressTextBytesMax));
  }
  RECON_RETURN_IF_ERROR(CheckCount(request.leases_size(), limits::kLeasesPerWorkerMax, "leases"));
  RECON_RETURN_IF_ERROR(CheckDeviceStatus(progress.device_status()));
  if (progress.precision().size() <= limits::kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("precision of ", progress.precision().size(),
                                                 " bytes, allowed are ", limits::kNameBytesMax));
}

}  // namespace recon
