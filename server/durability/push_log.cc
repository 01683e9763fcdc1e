#include "server/durability/push_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/fault_point.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kZeros[8] = {};

}  // namespace

PushLog::PushLog(const Options& options, FileSystem* files, const ApplyRules& rules, uint64_t next_sequence)
    : options_(options),
      files_(files),
      segment_head_(EncodeSegmentHead(rules)),
      next_sequence_(next_sequence) {}

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Open(const Options& options, FileSystem* files,
                                                       const ApplyRules& rules, uint64_t next_sequence) {
  RECON_RETURN_IF_ERROR(files->CreateDirectories(options.directory));
  std::unique_ptr<PushLog> log(new PushLog(options, files, rules, next_sequence));
  RECON_RETURN_IF_ERROR(log->OpenSegment(0));
  log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  return log;
}

PushLog::~PushLog() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void PushLog::Append(LogRecordKind kind, ByteChain payload, Done done) {
  MutexLock lock(&mu_);
  queue_.push_back({false, "", kind, std::move(payload), std::move(done)});
}

void PushLog::Barrier(Done done) {
  MutexLock lock(&mu_);
  queue_.push_back({true, "", LogRecordKind::kFrame, ByteChain(), std::move(done)});
}

absl::Status PushLog::BeginSegment(const ApplyRules& rules) {
  absl::Status status;
  Notification begun;
  {
    MutexLock lock(&mu_);
    queue_.push_back(
        {true, EncodeSegmentHead(rules), LogRecordKind::kFrame, ByteChain(), [&](const absl::Status& result) {
           status = result;
           begun.Notify();
         }});
  }
  begun.WaitForNotification();
  return status;
}

absl::Status PushLog::status() const {
  MutexLock lock(&mu_);
  return status_;
}

std::vector<PushLog::Entry> PushLog::TakeBatch() {
  std::vector<Entry> batch;
  MutexLock lock(&mu_);
  mu_.Await([this] { return stopping_ || !queue_.empty(); });
  uint64_t bytes = 0;
  while (!queue_.empty() && bytes < limits::kLogBatchBytes) {
    if (!queue_.front().new_head.empty() && !batch.empty()) break;  // Begins a batch.
    bytes += queue_.front().payload.size();
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return batch;
}

void PushLog::Run() {
  while (true) {
    std::vector<Entry> batch = TakeBatch();
    if (batch.empty()) return;
    absl::Status status = this->status();
    if (status.ok()) {
      status = Write(batch);
      if (!status.ok()) {
        spdlog::critical("the push log has failed, nothing more is acknowledged: {}", status.message());
        MutexLock lock(&mu_);
        status_ = status;
      }
    }
    for (Entry& entry : batch) entry.done(status);
  }
}

absl::Status PushLog::OpenSegment(uint64_t bytes_needed) {
  const std::string path = absl::StrCat(options_.directory, "/", SegmentName(next_sequence_));
  segment_ = Segment();
  RECON_FAULT_POINT("log.before_segment");
  RECON_ASSIGN_OR_RETURN(segment_.file, files_->Create(path));
  const absl::Status allocated =
      segment_.file->Allocate(std::max(options_.segment_bytes, segment_head_.size() + bytes_needed));
  if (!allocated.ok()) {
    files_->Remove(path).IgnoreError();  // Half a segment helps nobody on a full disk.
    return allocated;
  }
  RECON_FAULT_POINT("log.before_head");
  RECON_RETURN_IF_ERROR(segment_.file->Append({segment_head_}));
  segment_.bytes = segment_head_.size();
  if (!options_.sync) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(segment_.file->Sync());
  RECON_FAULT_POINT("log.before_directory_sync");
  return files_->SyncDirectory(options_.directory);
}

absl::Status PushLog::Write(const std::vector<Entry>& batch) {
  if (!batch.front().new_head.empty()) {
    segment_head_ = batch.front().new_head;
    RECON_RETURN_IF_ERROR(OpenSegment(0));
  }
  std::vector<std::string> heads;
  heads.reserve(batch.size());
  std::vector<absl::string_view> pieces;
  uint64_t bytes = 0;
  for (const Entry& entry : batch) {
    if (entry.barrier) continue;
    heads.push_back(
        EncodeRecordHead(entry.kind, next_sequence_ + heads.size(), next_sequence_ - 1, entry.payload));
    pieces.push_back(heads.back());
    for (const ByteChain::Piece& piece : entry.payload.pieces()) {
      pieces.emplace_back(reinterpret_cast<const char*>(piece.data), piece.size);
    }
    const uint64_t unpadded = kRecordHeadBytes + entry.payload.size();
    pieces.emplace_back(kZeros, PaddedBytes(unpadded) - unpadded);
    bytes += PaddedBytes(unpadded);
  }
  if (heads.empty()) return absl::OkStatus();
  // A batch stays in one segment: it is as large as a batch at least.
  if (segment_.bytes + bytes > options_.segment_bytes && segment_.bytes > segment_head_.size()) {
    RECON_RETURN_IF_ERROR(OpenSegment(bytes));
  }
  RECON_FAULT_POINT("log.before_write");
  RECON_RETURN_IF_ERROR(segment_.file->Append(pieces));
  segment_.bytes += bytes;
  RECON_FAULT_POINT("log.before_sync");
  if (options_.sync) RECON_RETURN_IF_ERROR(segment_.file->Sync());
  RECON_FAULT_POINT("log.before_acknowledging");
  next_sequence_ += heads.size();
  bytes_written_.fetch_add(bytes);
  return absl::OkStatus();
}

absl::Status PushLog::Trim(uint64_t first_needed) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(options_.directory));
  std::string before;
  for (const std::string& name : names) {  // Sorted, and so by their sequences.
    const absl::StatusOr<uint64_t> first = FirstSequenceOf(name);
    if (!first.ok()) continue;
    if (!before.empty() && *first <= first_needed) {
      RECON_RETURN_IF_ERROR(files_->Remove(absl::StrCat(options_.directory, "/", before)));
      RECON_FAULT_POINT("log.trim");
    }
    before = name;
  }
  return absl::OkStatus();
}

}  // namespace recon
