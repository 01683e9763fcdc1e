#include "server/log_replay.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

class Replayer : public LogVisitor {
 public:
  Replayer(uint64_t job_id, ParamServer* params) : job_id_(job_id), params_(params) {}

  absl::Status OnRules(const ApplyRules& rules) override {
    if (rules.job_id != job_id_) {
      return absl::FailedPreconditionError(absl::StrCat("the log is of job ", absl::Hex(rules.job_id),
                                                        ", the snapshot of job ", absl::Hex(job_id_),
                                                        ": they do not belong together"));
    }
    params_->BeginReplay(rules);
    return absl::OkStatus();
  }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override {
    if (kind == LogRecordKind::kFrame) return params_->ReplayFrame(sequence, payload);
    const absl::StatusOr<StepClosing> decoded = DecodeClosing(payload.ToString());
    if (!decoded.ok()) {
      return absl::DataLossError(absl::StrCat("record ", sequence, ": ", decoded.status().message()));
    }
    const StepClosing& closing = *decoded;
    params_->ReplayClosing(sequence, closing);
    return absl::OkStatus();
  }

 private:
  const uint64_t job_id_;
  ParamServer* const params_;
};

}  // namespace

uint64_t FirstRecordFor(const Manifest& manifest) {
  return manifest.log_from() > 0 ? manifest.log_from() : manifest.sequence() + 1;
}

absl::StatusOr<LogEnd> ReplayLog(FileSystem* files, const std::string& directory, const Manifest& manifest,
                                 ParamServer* params) {
  Replayer replayer(manifest.job_id(), params);
  absl::StatusOr<LogEnd> end = ReadLog(files, directory, FirstRecordFor(manifest), &replayer);
  params->EndReplay();
  if (!end.ok())
    return absl::Status(end.status().code(), absl::StrCat(directory, ": ", end.status().message()));
  RECON_RETURN_IF_ERROR(SetAside(files, directory, *end));
  return end;
}

bool NeedsSnapshotFirst(const LogEnd& replayed, bool sync, uint64_t sequence) {
  return (sync && replayed.records > 0) || replayed.next_sequence != sequence + 1;
}

}  // namespace recon
