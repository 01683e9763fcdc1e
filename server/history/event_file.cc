#include "server/history/event_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kVersion[] = "brain.Event:2";
constexpr uint32_t kPolynomial = 0x82f63b78;  // Reflected.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

// As records have it: a checksum of bytes that have checksums in them says little.
uint32_t Masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

template <typename Number>
std::string Bytes(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

const HistorySeries* Find(const HistoryTrack& track, absl::string_view name) {
  for (const HistorySeries& series : track.series()) {
    if (series.name() == name) return &series;
  }
  return nullptr;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(FileSystem* files, const std::string& directory,
                                                             int64_t unix_ms, const std::string& host) {
  RECON_RETURN_IF_ERROR(files->CreateDirectories(directory));
  const std::string path =
      absl::StrCat(directory, "/events.out.tfevents.", unix_ms / 1000, ".", host, ".", unix_ms % 1000);
  RECON_ASSIGN_OR_RETURN(auto handle, files->Create(path));
  std::unique_ptr<EventFile> file(new EventFile(std::move(handle)));
  TensorBoardEvent version;
  version.set_wall_time(static_cast<double>(unix_ms) / 1000);
  version.set_file_version(kVersion);
  RECON_RETURN_IF_ERROR(file->Append(version));
  return file;
}

absl::Status EventFile::AddPoint(const HistoryTrack& track, int point, const char* prefix) {
  TensorBoardEvent event;
  event.set_wall_time(static_cast<double>(track.end_ms(point)) / 1000);
  event.set_step(step_);
  for (const HistorySeries& series : track.series()) {
    if (!std::isfinite(series.mean(point))) continue;
    TensorBoardSummary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(absl::StrCat(prefix, EscapeControls(series.name())));
    value->set_simple_value(series.mean(point));
  }
  return event.has_summary() ? Append(event) : absl::OkStatus();
}

absl::Status EventFile::Add(const JobHistory& piece, const HistoryTrack* worker) {
  const HistoryTrack& job = piece.job();
  const HistoryTrack& other = worker != nullptr ? *worker : piece.evaluations();
  const HistorySeries* updates = Find(job, "updates");
  // What is older than the first point of a file has the nearest number that is known.
  for (int i = 0; worker == nullptr && updates != nullptr && step_ == 0 && i < updates->mean_size(); ++i) {
    if (std::isfinite(updates->mean(i))) step_ = static_cast<int64_t>(updates->mean(i));
  }
  int next = 0;
  for (int i = 0; i <= job.end_ms_size(); ++i) {
    // In the order of their times, so that each has the updates there were.
    const bool at_end = i == job.end_ms_size();
    for (; next < other.end_ms_size() && (at_end || other.end_ms(next) < job.end_ms(i)); ++next)
      RECON_RETURN_IF_ERROR(AddPoint(other, next, worker != nullptr ? "train/" : "eval/"));
    if (at_end) break;
    if (updates != nullptr && std::isfinite(updates->mean(i)))
      step_ = std::max(step_, static_cast<int64_t>(updates->mean(i)));
    if (worker == nullptr) RECON_RETURN_IF_ERROR(AddPoint(job, i, "train/"));
  }
  return absl::OkStatus();
}

absl::Status EventFile::Append(const TensorBoardEvent& event) {
  const std::string body = event.SerializeAsString();
  const std::string length = Bytes(static_cast<uint64_t>(body.size()));
  return file_->Append({length, Bytes(Masked(Crc32c(length))), body, Bytes(Masked(Crc32c(body)))});
}

}  // namespace recon
