#include "server/durability/push_log.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/trace/recorder.h"
#include "common/trace/span_names.h"

namespace recon {
namespace {

constexpr char kZeros[8] = {};

}  // namespace

absl::StatusOr<uint64_t> BytesBelow(FileSystem* files, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    RECON_ASSIGN_OR_RETURN(const uint64_t size, files->Size(absl::StrCat(directory, "/", name)));
    bytes += size;
  }
  return bytes;
}

PushLog::PushLog(const Options& options, FileSystem* files, const ApplyRules& rules, uint64_t next_sequence)
    : options_(options),
      files_(files),
      segment_head_(EncodeSegmentHead(rules)),
      next_sequence_(next_sequence),
      called_back_(next_sequence - 1) {}

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Open(const Options& options, FileSystem* files,
                                                       const ApplyRules& rules, uint64_t next_sequence) {
  RECON_RETURN_IF_ERROR(files->CreateDirectories(options.directory));
  std::unique_ptr<PushLog> log(new PushLog(options, files, rules, next_sequence));
  RECON_ASSIGN_OR_RETURN(log->disk_bytes_, BytesBelow(files, options.directory));
  RECON_RETURN_IF_ERROR(log->OpenSegment(0));
  log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  return log;
}

PushLog::~PushLog() { Stop(); }

void PushLog::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void PushLog::Append(LogRecordKind kind, ByteChain payload, Done done) {
  RECON_CHECK(done != nullptr);
  MutexLock lock(&mu_);
  RECON_CHECK(!stopping_, "a record is appended to a log that ends");
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

void PushLog::TakeBatch() {
  RECON_CHECK(batch_.empty(), "a batch is taken before the one before is done");
  MutexLock lock(&mu_);
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); });
  uint64_t bytes = 0;
  while (!queue_.empty() && bytes < limits::kLogBatchBytes) {
    if (!queue_.front().new_head.empty() && !batch_.empty()) break;  // Begins a batch.
    bytes += queue_.front().payload.size();
    batch_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

void PushLog::Run() {
  pthread_setname_np(pthread_self(), "push-log");
  while (true) {
    TakeBatch();
    if (batch_.empty()) return;
    absl::Status status = this->status();
    if (status.ok()) {
      status = Write();
      if (!status.ok()) {
        LogCritical("the push log has failed, nothing more is acknowledged: {}", status.message());
        MutexLock lock(&mu_);
        status_ = status;
      }
    }
    for (Entry& entry : batch_) {
      if (status.ok() && !entry.barrier) ++called_back_;
      entry.done(status);
    }
    RECON_CHECK(!status.ok() || called_back_ + 1 == next_sequence_, "a record is not called back");
    batch_.clear();
  }
}

absl::Status PushLog::OpenSegment(uint64_t bytes_needed) {
  const std::string path = absl::StrCat(options_.directory, "/", SegmentName(next_sequence_));
  segment_ = Segment();
  RECON_FAULT_POINT("log.before_segment");
  RECON_ASSIGN_OR_RETURN(segment_.file, files_->Create(path));
  const uint64_t first = std::min(options_.segment_bytes, extent_bytes());
  const absl::Status allocated = Allocate(std::max(first, segment_head_.size() + bytes_needed));
  if (!allocated.ok()) {
    files_->Remove(path).IgnoreError();  // Half a segment helps nobody on a full disk.
    return allocated;
  }
  LookForRoom();
  RECON_FAULT_POINT("log.before_head");
  RECON_RETURN_IF_ERROR(segment_.file->Append({segment_head_}));
  segment_.bytes = segment_head_.size();
  if (!options_.sync) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(segment_.file->Sync());
  RECON_FAULT_POINT("log.before_directory_sync");
  return files_->SyncDirectory(options_.directory);
}

uint64_t PushLog::extent_bytes() const {
  return std::min(limits::kLogExtentBytes, std::max<uint64_t>(options_.budget_bytes / 64, uint64_t{1} << 18));
}

absl::Status PushLog::Allocate(uint64_t bytes) {
  RECON_RETURN_IF_ERROR(segment_.file->Allocate(bytes));
  RECON_CHECK_GE(bytes, segment_.allocated, "a segment's file only grows");
  disk_bytes_.fetch_add(bytes - segment_.allocated);
  segment_.allocated = bytes;
  return absl::OkStatus();
}

void PushLog::LookForRoom() {
  const absl::StatusOr<uint64_t> free = files_->FreeBytes(options_.directory);
  short_of_room_ = free.ok() && *free < 2 * extent_bytes();
}

absl::Status PushLog::Reserve(uint64_t bytes) {
  const uint64_t end = segment_.bytes + bytes;
  const uint64_t ahead = std::min(end + extent_bytes(), std::max(options_.segment_bytes, end));
  if (ahead <= segment_.allocated || end + extent_bytes() / 2 <= segment_.allocated) return absl::OkStatus();
  const absl::Status allocated = Allocate(ahead);
  LookForRoom();
  if (allocated.ok() || end <= segment_.allocated) return absl::OkStatus();
  return end == ahead ? allocated : Allocate(end);
}

absl::Status PushLog::Write() {
  if (!batch_.front().new_head.empty()) {
    segment_head_ = batch_.front().new_head;
    RECON_RETURN_IF_ERROR(OpenSegment(0));
  }
  heads_.clear();
  heads_.reserve(batch_.size() * kRecordHeadBytes);  // They stay where they are.
  pieces_.clear();
  uint64_t bytes = 0, records = 0;
  for (const Entry& entry : batch_) {
    RECON_CHECK(entry.new_head.empty() || &entry == &batch_.front(), "a segment begins within a batch");
    if (entry.barrier) continue;
    const size_t head = heads_.size();
    AppendRecordHead(entry.kind, next_sequence_ + records++, next_sequence_ - 1, entry.payload, &hash_,
                     &heads_);
    pieces_.emplace_back(heads_.data() + head, kRecordHeadBytes);
    for (const ByteChain::Piece& piece : entry.payload.pieces()) {
      pieces_.emplace_back(reinterpret_cast<const char*>(piece.data), piece.size);
    }
    const uint64_t unpadded = kRecordHeadBytes + entry.payload.size();
    pieces_.emplace_back(kZeros, PaddedBytes(unpadded) - unpadded);
    bytes += PaddedBytes(unpadded);
  }
  if (records == 0) return absl::OkStatus();
  RECON_CHECK_EQ(heads_.size(), records * kRecordHeadBytes);
  const trace::Span span(trace::kWritingLog);
  // A batch stays in one segment: it is as large as a batch at least.
  if (segment_.bytes + bytes > options_.segment_bytes && segment_.bytes > segment_head_.size()) {
    RECON_RETURN_IF_ERROR(OpenSegment(bytes));
  }
  RECON_RETURN_IF_ERROR(Reserve(bytes));
  RECON_FAULT_POINT("log.before_write");
  RECON_RETURN_IF_ERROR(segment_.file->Append(pieces_));
  segment_.bytes += bytes;
  RECON_CHECK_LE(segment_.bytes, segment_.allocated, "records are written where no room was reserved");
  RECON_FAULT_POINT("log.before_sync");
  if (options_.sync) RECON_RETURN_IF_ERROR(segment_.file->Sync());
  RECON_FAULT_POINT("log.before_acknowledging");
  next_sequence_ += records;
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
      const std::string path = absl::StrCat(options_.directory, "/", before);
      RECON_ASSIGN_OR_RETURN(const uint64_t size, files_->Size(path));
      RECON_RETURN_IF_ERROR(files_->Remove(path));
      disk_bytes_.fetch_sub(size);
      RECON_FAULT_POINT("log.trim");
    }
    before = name;
  }
  LookForRoom();
  return absl::OkStatus();
}

}  // namespace recon
