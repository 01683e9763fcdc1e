#include "server/durability/log_reader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

struct SegmentFile {
  std::string name;
  uint64_t first = 0;
};

absl::StatusOr<std::vector<SegmentFile>> Segments(FileSystem* files, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
  std::vector<SegmentFile> segments;
  for (const std::string& name : names) {
    if (const auto first = FirstSequenceOf(name); first.ok()) segments.push_back({name, *first});
  }
  return segments;
}

// Whole records behind a place in a segment.
struct Remains {
  uint64_t records = 0;
  uint64_t pushes = 0;        // Of those, frames and closings.
  uint64_t acknowledged = 0;  // The highest that any of them knows to be safe.
};

// Those behind `offset`, from sequence `first` on.
Remains FindRecords(absl::string_view segment, uint64_t offset, uint64_t first = 0) {
  Remains remains;
  for (uint64_t at = SkipZeros(segment, PaddedBytes(offset)); at + kRecordHeadBytes <= segment.size();) {
    const absl::StatusOr<LogRecord> record = DecodeRecord(segment, at);
    at = SkipZeros(segment, at + (record.ok() ? record->bytes : 8));
    if (!record.ok() || record->sequence < first) continue;
    ++remains.records;
    const bool control = record->kind == LogRecordKind::kControl || record->kind == LogRecordKind::kFreeze;
    if (!control) ++remains.pushes;
    remains.acknowledged = std::max(remains.acknowledged, record->acknowledged);
  }
  return remains;
}

// Where the first record behind `offset` is whose sequence is within [low, high]; 0 if there is none.
uint64_t FindRecordBetween(absl::string_view segment, uint64_t offset, uint64_t low, uint64_t high) {
  for (uint64_t at = SkipZeros(segment, PaddedBytes(offset)); at + kRecordHeadBytes <= segment.size();
       at = SkipZeros(segment, at + 8)) {
    const absl::StatusOr<LogRecord> record = DecodeRecord(segment, at);
    if (record.ok() && record->sequence >= low && record->sequence <= high) return at;
  }
  return 0;
}

absl::StatusOr<std::string> Load(FileSystem* files, const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  RECON_ASSIGN_OR_RETURN(const uint64_t size, files->Size(path));
  return files->Read(path, 0, size);
}

class Reader {
 public:
  Reader(FileSystem* files, std::string directory, uint64_t first, LogVisitor* visitor)
      : files_(files), directory_(std::move(directory)), first_(first), visitor_(visitor) {
    end_.next_sequence = first;
  }

  absl::StatusOr<LogEnd> Read() {
    RECON_ASSIGN_OR_RETURN(const std::vector<SegmentFile> segments, Segments(files_, directory_));
    size_t next = 0;
    while (next + 1 < segments.size() && segments[next + 1].first <= first_) ++next;
    if (next < segments.size() && segments[next].first > first_) {
      end_.trailing =
          absl::StrCat(directory_, " begins with record ", segments[next].first, ", needed is ", first_);
    }
    for (; next < segments.size(); ++next) {
      // A segment goes on from where the one before ends; the first may begin before what is wanted.
      if (segments[next].first > end_.next_sequence) break;
      RECON_RETURN_IF_ERROR(ReadSegment(segments[next]));
    }
    for (; next < segments.size(); ++next) {
      end_.unread_segments.push_back(segments[next].name);
      RECON_ASSIGN_OR_RETURN(const std::string bytes, Load(files_, directory_, segments[next].name));
      NoteRemains(FindRecords(bytes, 0));
    }
    if (!damaged_) {
      end_.records_lost = 0;
      end_.damaged_segments.clear();
    }
    return std::move(end_);
  }

 private:
  absl::Status ReadSegment(const SegmentFile& segment) {
    RECON_ASSIGN_OR_RETURN(std::string loaded, Load(files_, directory_, segment.name));
    const auto bytes = std::make_shared<const std::string>(std::move(loaded));
    const absl::StatusOr<SegmentHead> head = DecodeSegmentHead(*bytes);
    if (!head.ok()) {
      const bool zeros = SkipZeros(*bytes, 0) >= bytes->size();
      NoteEnd(segment, *bytes, 0, zeros ? absl::NotFoundError("zeros") : head.status());
      return absl::OkStatus();
    }
    bool rules_told = false;
    uint64_t sequence = segment.first;
    for (uint64_t offset = head->bytes;;) {
      absl::StatusOr<LogRecord> record = DecodeRecord(*bytes, offset);
      if (record.ok() && record->sequence != sequence) {
        record = absl::DataLossError(
            absl::StrCat("sequence is ", record->sequence, ", the next one is ", sequence));
      }
      if (!record.ok() && sequence < first_) {
        // Not needed: on to the first that is, or one before it.
        const uint64_t next = FindRecordBetween(*bytes, offset, sequence + 1, first_);
        if (next > 0) {
          offset = next;
          sequence = DecodeRecord(*bytes, offset)->sequence;
          continue;
        }
      }
      if (!record.ok()) {
        NoteEnd(segment, *bytes, offset, record.status());
        return absl::OkStatus();
      }
      if (sequence >= first_) {
        if (!rules_told) RECON_RETURN_IF_ERROR(visitor_->OnRules(head->rules));
        rules_told = true;
        ByteChain payload;
        payload.Append(record->payload.data(), record->payload.size(), bytes);
        RECON_RETURN_IF_ERROR(visitor_->OnRecord(record->kind, sequence, payload));
        ++end_.records;
        end_.bytes += record->bytes;
        end_.next_sequence = sequence + 1;
      }
      ++sequence;
      offset += record->bytes;
    }
  }

  // What ends a segment is the log's end only if no other segment goes on from there.
  void NoteEnd(const SegmentFile& segment, absl::string_view bytes, uint64_t offset,
               const absl::Status& why) {
    end_.trailing.clear();
    end_.damaged_segments.clear();
    end_.records_lost = 0;
    damaged_ = false;
    if (absl::IsNotFound(why)) return;
    end_.trailing = absl::StrCat(directory_, "/", segment.name, " at byte ", offset, ": ", why.message());
    NoteRemains(FindRecords(bytes, offset));
    // The next segment to be written would have its name.
    if (end_.records_lost == 0) return;
    auto& segments = segment.first == end_.next_sequence ? end_.unread_segments : end_.damaged_segments;
    segments.push_back(segment.name);
  }

  // Whole records of later sequences are there. A crash leaves some, too, if they were written together with
  // the one that is missing; not if that one was safe before.
  void NoteRemains(const Remains& remains) {
    end_.records_lost += remains.records;
    damaged_ |= remains.records > 0 && remains.acknowledged >= end_.next_sequence;
  }

  FileSystem* const files_;
  const std::string directory_;
  const uint64_t first_;
  LogVisitor* const visitor_;
  LogEnd end_;
  bool damaged_ = false;
};

}  // namespace

absl::StatusOr<LogEnd> ReadLog(FileSystem* files, const std::string& directory, uint64_t first,
                               LogVisitor* visitor) {
  return Reader(files, directory, first, visitor).Read();
}

absl::StatusOr<uint64_t> CountLoggedPushes(FileSystem* files, const std::string& directory, uint64_t first) {
  RECON_ASSIGN_OR_RETURN(const std::vector<SegmentFile> segments, Segments(files, directory));
  uint64_t pushes = 0;
  for (const SegmentFile& segment : segments) {
    RECON_ASSIGN_OR_RETURN(const std::string bytes, Load(files, directory, segment.name));
    pushes += FindRecords(bytes, 0, first).pushes;
  }
  return pushes;
}

absl::Status SetAside(FileSystem* files, const std::string& directory, const LogEnd& end) {
  // A link first: what was set aside before is not overwritten.
  const auto keep = [&](const std::string& name) {
    const std::string path = absl::StrCat(directory, "/", name);
    absl::Status linked = absl::AlreadyExistsError("");
    for (int copy = 1; absl::IsAlreadyExists(linked); ++copy) {
      linked = files->Link(path, absl::StrCat(path, ".damaged", copy == 1 ? "" : absl::StrCat("-", copy)));
    }
    return linked;
  };
  for (const std::string& name : end.damaged_segments) RECON_RETURN_IF_ERROR(keep(name));
  for (const std::string& name : end.unread_segments) {
    RECON_RETURN_IF_ERROR(keep(name));
    RECON_RETURN_IF_ERROR(files->Remove(absl::StrCat(directory, "/", name)));
  }
  if (end.damaged_segments.empty() && end.unread_segments.empty()) return absl::OkStatus();
  return files->SyncDirectory(directory);
}

}  // namespace recon
