#include "server/log_replay.h"

#include "common/base/status_macros.h"

namespace recon {
namespace {

class Replayer : public LogVisitor {
 public:
  explicit Replayer(ParamServer* params) : params_(params) {}

  absl::Status OnRules(const ApplyRules& rules) override {
    params_->BeginReplay(rules);
    return absl::OkStatus();
  }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override {
    if (kind == LogRecordKind::kFrame) return params_->ReplayFrame(sequence, payload);
    RECON_ASSIGN_OR_RETURN(const StepClosing closing, DecodeClosing(payload.ToString()));
    params_->ReplayClosing(sequence, closing);
    return absl::OkStatus();
  }

 private:
  ParamServer* const params_;
};

}  // namespace

uint64_t FirstRecordFor(const Manifest& manifest) {
  return manifest.log_from() > 0 ? manifest.log_from() : manifest.sequence() + 1;
}

absl::StatusOr<LogEnd> ReplayLog(FileSystem* files, const std::string& directory, const Manifest& manifest,
                                 ParamServer* params) {
  Replayer replayer(params);
  absl::StatusOr<LogEnd> end = ReadLog(files, directory, FirstRecordFor(manifest), &replayer);
  params->EndReplay();
  RECON_RETURN_IF_ERROR(end.status());
  RECON_RETURN_IF_ERROR(SetAside(files, directory, end->unread_segments));
  return end;
}

}  // namespace recon
