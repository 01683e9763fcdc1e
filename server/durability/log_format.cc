#include "server/durability/log_format.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"

namespace recon {
namespace {

constexpr absl::string_view kSegmentMagic("RCNPLOG\0", 8);
constexpr uint32_t kSegmentVersion = 3;
constexpr char kSegmentPrefix[] = "LOG-";
constexpr size_t kRulesBytesMax = 1 << 20;

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The value at `offset`, which must be there.
template <typename T>
T Get(absl::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

std::string EncodeClosing(const StepClosing& closing) {
  std::string bytes;
  Put<uint64_t>(closing.step, &bytes);
  Put<uint32_t>(static_cast<uint32_t>(closing.shards.size()), &bytes);
  Put<uint32_t>(static_cast<uint32_t>(closing.contributors.size()), &bytes);
  for (const uint32_t shard : closing.shards) Put<uint32_t>(shard, &bytes);
  for (const auto& [worker, incarnation] : closing.contributors) {
    Put<uint32_t>(worker.value(), &bytes);
    Put<uint64_t>(incarnation.value(), &bytes);
  }
  return bytes;
}

absl::StatusOr<StepClosing> DecodeClosing(absl::string_view payload) {
  constexpr size_t kHead = 16, kShard = 4, kEntry = 12;
  if (payload.size() < kHead) {
    return absl::DataLossError(absl::StrCat("closing of ", payload.size(), " bytes"));
  }
  StepClosing closing;
  closing.step = Get<uint64_t>(payload, 0);
  const uint64_t shards = Get<uint32_t>(payload, 8);
  const uint64_t count = Get<uint32_t>(payload, 12);
  if (payload.size() != kHead + shards * kShard + count * kEntry) {
    return absl::DataLossError(absl::StrCat("closing of ", shards, " shards and ", count,
                                            " contributors has ", payload.size(), " bytes"));
  }
  size_t offset = kHead;
  for (uint64_t i = 0; i < shards; ++i, offset += kShard) {
    const auto shard = Get<uint32_t>(payload, offset);
    if (i > 0 && shard <= closing.shards.back()) {
      return absl::DataLossError(absl::StrCat("closing: shard ", i, " does not ascend"));
    }
    closing.shards.push_back(shard);
  }
  for (uint64_t i = 0; i < count; ++i, offset += kEntry) {
    const std::pair<WorkerId, Incarnation> contributor{
        WorkerId(Get<uint32_t>(payload, offset)),
        Incarnation(Get<uint64_t>(payload, offset + sizeof(uint32_t)))};
    if (i > 0 && !(closing.contributors.back() < contributor)) {
      return absl::DataLossError(absl::StrCat("closing: contributor ", i, " does not ascend"));
    }
    closing.contributors.push_back(contributor);
  }
  return closing;
}

std::string SegmentName(uint64_t first_sequence) {
  return absl::StrFormat("%s%016x", kSegmentPrefix, first_sequence);
}

absl::StatusOr<uint64_t> FirstSequenceOf(absl::string_view name) {
  absl::string_view digits = name;
  uint64_t sequence = 0;
  if (!absl::ConsumePrefix(&digits, kSegmentPrefix) || digits.size() != 16 ||
      !absl::SimpleHexAtoi(digits, &sequence) || SegmentName(sequence) != name) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is no segment of a push log"));
  }
  return sequence;
}

std::string EncodeSegmentHead(const ApplyRules& rules) {
  const std::string message = EncodeRules(rules).SerializeAsString();
  std::string bytes(kSegmentMagic);
  Put<uint32_t>(kSegmentVersion, &bytes);
  Put<uint32_t>(static_cast<uint32_t>(message.size()), &bytes);
  bytes += message;
  Put<uint64_t>(Hash64(bytes.data(), bytes.size()), &bytes);
  bytes.resize(PaddedBytes(bytes.size()), '\0');
  return bytes;
}

absl::StatusOr<SegmentHead> DecodeSegmentHead(absl::string_view segment) {
  const size_t fixed = kSegmentMagic.size() + 4 + 4;
  if (segment.size() < fixed + 8) {
    return absl::DataLossError(absl::StrCat("segment of ", segment.size(), " bytes"));
  }
  if (segment.substr(0, kSegmentMagic.size()) != kSegmentMagic) {
    return absl::DataLossError(absl::StrCat("magic is ", ToHex(segment.substr(0, kSegmentMagic.size())),
                                            ", a segment's is ", ToHex(kSegmentMagic)));
  }
  const auto version = Get<uint32_t>(segment, 8);
  if (version != kSegmentVersion) {
    return absl::DataLossError(
        absl::StrCat("version is ", version, ", the newest known is ", kSegmentVersion));
  }
  const uint64_t length = Get<uint32_t>(segment, 12);
  if (length > kRulesBytesMax || length > segment.size() - fixed - 8) {
    return absl::DataLossError(absl::StrCat("rules of ", length, " bytes in a segment of ", segment.size()));
  }
  const auto checksum = Get<uint64_t>(segment, fixed + length);
  if (Hash64(segment.data(), fixed + length) != checksum) {
    return absl::DataLossError("checksum of the segment's head is wrong");
  }
  UpdateRules message;
  if (!message.ParseFromArray(segment.data() + fixed, static_cast<int>(length))) {
    return absl::DataLossError("rules cannot be parsed");
  }
  SegmentHead head;
  RECON_ASSIGN_OR_RETURN(head.rules, DecodeRules(message));
  head.bytes = PaddedBytes(fixed + length + 8);
  return head;
}

ByteChain FreezeRecord() { return ByteChain::FromString(std::string(1, '\0')); }

void AppendRecordHead(LogRecordKind kind, uint64_t sequence, uint64_t acknowledged, const ByteChain& payload,
                      StreamingHash64* scratch, std::string* to) {
  const size_t begin = to->size();
  Put<uint32_t>(static_cast<uint32_t>(payload.size()), to);
  Put<uint8_t>(static_cast<uint8_t>(kind), to);
  to->append(3, '\0');
  Put<uint64_t>(sequence, to);
  Put<uint64_t>(acknowledged, to);
  scratch->Reset();
  scratch->Update(to->data() + begin, to->size() - begin);
  for (const ByteChain::Piece& piece : payload.pieces()) scratch->Update(piece.data, piece.size);
  Put<uint64_t>(scratch->Digest(), to);
}

uint64_t SkipZeros(absl::string_view segment, uint64_t offset) {
  for (uint64_t word = 0; offset + sizeof(word) <= segment.size(); offset += sizeof(word)) {
    std::memcpy(&word, segment.data() + offset, sizeof(word));
    if (word != 0) return offset;
  }
  const bool zeros = segment.substr(std::min<uint64_t>(offset, segment.size())).find_first_not_of('\0') ==
                     absl::string_view::npos;
  return zeros ? segment.size() : offset;
}

absl::StatusOr<LogRecord> DecodeRecord(absl::string_view segment, uint64_t offset) {
  if (offset >= segment.size()) return absl::NotFoundError("the segment ends");
  const absl::string_view bytes = segment.substr(offset);
  if (bytes.size() < kRecordHeadBytes || Get<uint32_t>(bytes, 0) == 0) {
    if (SkipZeros(segment, offset) >= segment.size()) return absl::NotFoundError("zeros");
    return absl::DataLossError(absl::StrCat("no record: ", bytes.size(), " bytes that are not all zero"));
  }
  LogRecord record;
  const uint64_t length = Get<uint32_t>(bytes, 0);
  const auto kind = Get<uint8_t>(bytes, 4);
  record.kind = static_cast<LogRecordKind>(kind);
  record.sequence = Get<uint64_t>(bytes, 8);
  record.acknowledged = Get<uint64_t>(bytes, 16);
  if (kind < static_cast<uint8_t>(LogRecordKind::kFrame) ||
      kind > static_cast<uint8_t>(LogRecordKind::kFreeze)) {
    return absl::DataLossError(absl::StrCat("record of kind ", kind));
  }
  if (Get<uint8_t>(bytes, 5) != 0 || Get<uint16_t>(bytes, 6) != 0) {
    return absl::DataLossError("bytes of a record's head that must be 0 are not");
  }
  if (length > limits::kLogRecordBytesMax || length > bytes.size() - kRecordHeadBytes) {
    return absl::DataLossError(absl::StrCat("record of ", length, " bytes, ", bytes.size() - kRecordHeadBytes,
                                            " are left (at most ", limits::kLogRecordBytesMax, " allowed)"));
  }
  record.payload = bytes.substr(kRecordHeadBytes, length);
  StreamingHash64 hash;
  hash.Update(bytes.data(), kRecordHeadBytes - sizeof(uint64_t));
  hash.Update(record.payload.data(), record.payload.size());
  if (hash.Digest() != Get<uint64_t>(bytes, kRecordHeadBytes - sizeof(uint64_t))) {
    return absl::DataLossError(absl::StrCat("checksum of record ", record.sequence, " is wrong"));
  }
  record.bytes = PaddedBytes(kRecordHeadBytes + length);
  return record;
}

}  // namespace recon
