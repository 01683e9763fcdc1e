#include "server/cluster/snapshot_parts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace recon {

absl::Status SnapshotParts::Begin(uint64_t generation) {
  {
    MutexLock lock(&mu_);
    generation_ = generation;
    attempt_ = RandomNonZero();
    parts_.clear();
    sequences_.clear();
    failure_ = absl::OkStatus();
  }
  // Only now: who goes after this look fails the attempt.
  const ServersState servers = links_->state();
  absl::Status there;
  if (!servers.live) {
    there = absl::UnavailableError("a snapshot needs all servers, and one is not there");
  } else if (!servers.all_have_values) {
    there = absl::FailedPreconditionError("no snapshot: not all servers have parameters yet");
  }
  if (there.ok()) return there;
  MutexLock lock(&mu_);
  generation_ = 0;
  return there;
}

void SnapshotParts::SendCut(bool background) {
  ServerCommand command;
  {
    MutexLock lock(&mu_);
    command.mutable_cut()->set_generation(generation_);
    command.mutable_cut()->set_attempt(attempt_);
  }
  command.mutable_cut()->set_background(background);
  links_->Broadcast(command);
}

absl::StatusOr<std::vector<SnapshotPart>> SnapshotParts::Collect() {
  const std::vector<ServerHello> hellos = links_->Hellos();
  std::vector<SnapshotPart> parts;
  MutexLock lock(&mu_);
  mu_.Await([this, &hellos]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !failure_.ok() || parts_.size() == hellos.size();
  });
  RECON_RETURN_IF_ERROR(failure_);
  for (auto& [place, part] : parts_) {
    if (!part.error().empty()) {
      return absl::UnavailableError(absl::StrCat("server ", place, ": ", part.error()));
    }
    part.mutable_server()->set_id(hellos[place - 1].server_id());
    sequences_[place] = part.server().sequence();
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::Status SnapshotParts::End() {
  MutexLock lock(&mu_);
  generation_ = 0;
  return failure_;
}

void SnapshotParts::NotePublished() {
  uint64_t attempt = 0;
  std::map<uint32_t, uint64_t> sequences;
  {
    MutexLock lock(&mu_);
    attempt = attempt_;
    sequences = sequences_;
  }
  links_->NotePublished(attempt, sequences);
}

void SnapshotParts::NoteRestored(const Manifest& manifest) {
  // Of another number of servers each had other shards.
  if (manifest.servers_size() != static_cast<int>(links_->Hellos().size()) + 1) return;
  std::map<uint32_t, uint64_t> sequences;
  for (int i = 1; i < manifest.servers_size(); ++i) {
    sequences[static_cast<uint32_t>(i)] = manifest.servers(i).sequence();
  }
  links_->NotePublished(std::nullopt, sequences);
}

void SnapshotParts::Note(uint32_t place, const SnapshotPart& part) {
  MutexLock lock(&mu_);
  if (part.attempt() == attempt_) parts_[place] = part;
}

void SnapshotParts::GiveUp(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (generation_ != 0) failure_.Update(why);
}

}  // namespace recon
