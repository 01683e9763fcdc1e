#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_chain.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/optim/apply_rules.h"
#include "server/sync/step_closing.h"

namespace recon {

// The bytes of the push log; the grammar is in LOG.md. Pure functions.

enum class LogRecordKind : uint8_t { kFrame = 1, kClosing = 2, kControl = 3, kFreeze = 4 };

// A push, as its frames name it: worker, incarnation, step.
using LoggedPush = std::tuple<uint32_t, uint64_t, uint64_t>;
using LoggedPushes = std::set<LoggedPush>;

// The payload of a freeze record, which has nothing to say but where it is.
ByteChain FreezeRecord();

std::string EncodeClosing(const StepClosing& closing);
// DataLoss if the length does not match the counts, or shards or contributors do not ascend.
absl::StatusOr<StepClosing> DecodeClosing(absl::string_view payload);

std::string SegmentName(uint64_t first_sequence);
// The first sequence in a segment's name; InvalidArgument if it is no segment's.
absl::StatusOr<uint64_t> FirstSequenceOf(absl::string_view name);

// What a segment begins with.
std::string EncodeSegmentHead(const ApplyRules& rules);
struct SegmentHead {
  ApplyRules rules;
  uint64_t bytes = 0;  // Where the first record is.
};
absl::StatusOr<SegmentHead> DecodeSegmentHead(absl::string_view segment);

// What comes before a record's payload. After the payload come zeros, up to a multiple of 8 bytes.
inline constexpr uint64_t kRecordHeadBytes = 4 + 1 + 3 + 8 + 8 + 8;
// `scratch`: for its checksum.
void AppendRecordHead(LogRecordKind kind, uint64_t sequence, uint64_t acknowledged, const ByteChain& payload,
                      StreamingHash64* scratch, std::string* to);
inline constexpr uint64_t PaddedBytes(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

struct LogRecord {
  LogRecordKind kind = LogRecordKind::kFrame;
  uint64_t sequence = 0;
  uint64_t acknowledged = 0;  // A record up to which all were safe when this one was written.
  absl::string_view payload;
  uint64_t bytes = 0;  // With head and padding.
};
// The first multiple of 8 from `offset`, one itself, on whose 8 bytes are not all zero; segment.size() or
// more if there is none.
uint64_t SkipZeros(absl::string_view segment, uint64_t offset);

// The record at `offset`. NotFound if only zeros or nothing follow; DataLoss, with what is wrong, if
// something does that is no record.
absl::StatusOr<LogRecord> DecodeRecord(absl::string_view segment, uint64_t offset);

}  // namespace recon
