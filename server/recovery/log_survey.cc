#include "server/recovery/log_survey.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Rules have a few lines for each group of tensors.
constexpr uint64_t kHeadBytesMax = uint64_t{1} << 20;

}  // namespace

absl::StatusOr<std::map<uint64_t, uint64_t>> LogSurvey::Histories(FileSystem* files,
                                                                  const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
  std::map<uint64_t, uint64_t> histories;
  for (const std::string& name : names) {
    const absl::StatusOr<uint64_t> first = FirstSequenceOf(name);
    if (!first.ok()) continue;
    const std::string path = absl::StrCat(directory, "/", name);
    RECON_ASSIGN_OR_RETURN(const uint64_t size, files->Size(path));
    RECON_ASSIGN_OR_RETURN(const std::string bytes, files->Read(path, 0, std::min(size, kHeadBytesMax)));
    const absl::StatusOr<SegmentHead> head = DecodeSegmentHead(bytes);
    if (head.ok()) histories[*first] = head->rules.history;  // Otherwise a crash has left it.
  }
  return histories;
}

absl::StatusOr<LoggedWork> CountWork(FileSystem* files, const std::string& directory, uint64_t first,
                                     uint64_t last) {
  LoggedWork work;
  LoggedPushes seen;
  LogSurvey survey([&](uint64_t sequence, const FrameHeader& header) {
    if (sequence < first || !seen.emplace(header.worker, header.incarnation, header.step).second) return;
    ++work.pushes;
    work.samples += header.samples;
  });
  RECON_RETURN_IF_ERROR(survey.Read(files, directory, first, last).status());
  return work;
}

absl::StatusOr<LogEnd> LogSurvey::Read(FileSystem* files, const std::string& directory, uint64_t first,
                                       uint64_t last) {
  last_wanted_ = last;
  absl::StatusOr<LogEnd> end = ReadLog(files, directory, first, this);
  if (absl::IsCancelled(end.status())) {  // Far enough.
    LogEnd seen;
    seen.next_sequence = last_seen_ + 1;
    return seen;
  }
  if (!end.ok())
    return absl::Status(end.status().code(), absl::StrCat(directory, ": ", end.status().message()));
  return end;
}

absl::Status LogSurvey::OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) {
  if (sequence > last_wanted_) return absl::CancelledError("far enough");
  last_seen_ = sequence;
  if (kind == LogRecordKind::kControl) control_.push_back(payload.ToString());
  if (kind != LogRecordKind::kFrame) return absl::OkStatus();
  const absl::StatusOr<Frame> frame = DecodeFrame(payload);
  if (!frame.ok()) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": ", frame.status().message()));
  }
  first_step_ = std::max(first_step_, frame->header.step + 1);
  if (on_frame_) on_frame_(sequence, frame->header);
  return absl::OkStatus();
}

}  // namespace recon
