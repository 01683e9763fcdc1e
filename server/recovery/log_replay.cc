#include "server/recovery/log_replay.h"

#include "absl/strings/str_cat.h"
#include "common/base/human_bytes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {

absl::Status Replayer::OnRules(const ApplyRules& rules) {
  if (rules.job_id != job_id_) {
    return absl::FailedPreconditionError(absl::StrCat("the log is of job ", absl::Hex(rules.job_id),
                                                      ", the snapshot of job ", absl::Hex(job_id_),
                                                      ": they do not belong together"));
  }
  rules_history_ = rules.history;
  if (rules_history_ == history_) params_->replay()->BeginReplay(rules);
  return absl::OkStatus();
}

absl::Status Replayer::OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) {
  if (sequence > last_) return absl::CancelledError("far enough");
  if (rules_history_ != history_) {
    return absl::FailedPreconditionError(absl::StrCat("a rollback lies between record ", sequence,
                                                      " (history ", rules_history_,
                                                      ") and the snapshot (history ", history_, ")"));
  }
  bytes_ += payload.size();
  if (Now() >= next_progress_) {
    LogInfo("replaying the push log: at record {}, {}", sequence, HumanBytes(bytes_));
    next_progress_ = Now() + kProgressInterval;
  }
  if (kind == LogRecordKind::kFrame) return params_->replay()->ReplayFrame(sequence, payload);
  absl::Status decoded;
  if (kind == LogRecordKind::kFreeze) {
    if (payload.ToString() == FreezeRecord().ToString()) {
      params_->replay()->ReplayFreeze(sequence);
      return absl::OkStatus();
    }
    decoded = absl::DataLossError("a freeze record is one byte, 0");
  } else if (kind == LogRecordKind::kClosing) {
    const absl::StatusOr<StepClosing> closing = DecodeClosing(payload.ToString());
    if (closing.ok()) return params_->replay()->ReplayClosing(sequence, *closing);
    decoded = closing.status();
  } else {
    decoded = AddControlRecord(payload.ToString(), control_);
    if (decoded.ok()) params_->replay()->ReplayControl(sequence);
  }
  if (decoded.ok()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("record ", sequence, ": ", decoded.message()));
}

uint64_t FirstRecordFor(const Manifest& manifest) {
  return manifest.log_from() > 0 ? manifest.log_from() : manifest.sequence() + 1;
}

absl::StatusOr<LogEnd> ReplayLog(FileSystem* files, const std::string& directory, const Manifest& manifest,
                                 ParamServer* params, ControlState* control) {
  Replayer replayer(manifest, UINT64_MAX, params, control);
  absl::StatusOr<LogEnd> end = ReadLog(files, directory, FirstRecordFor(manifest), &replayer);
  params->replay()->EndReplay();
  if (!end.ok())
    return absl::Status(end.status().code(), absl::StrCat(directory, ": ", end.status().message()));
  RECON_RETURN_IF_ERROR(SetAside(files, directory, *end));
  return end;
}

bool NeedsSnapshotFirst(const LogEnd& replayed, bool sync, uint64_t sequence) {
  return (sync && replayed.records > 0) || replayed.next_sequence != sequence + 1;
}

}  // namespace recon
