#include <cstdint>
#include <string>

#include "common/snapshot/control_state.h"
#include "server/durability/log_format.h"
#include "server/durability/log_reader.h"
#include "tests/support/faulty_file_system.h"

namespace {

class Ignore : public recon::LogVisitor {
 public:
  absl::Status OnRules(const recon::ApplyRules&) override { return absl::OkStatus(); }
  absl::Status OnRecord(recon::LogRecordKind kind, uint64_t, const recon::ByteChain& payload) override {
    if (kind == recon::LogRecordKind::kClosing) recon::DecodeClosing(payload.ToString()).IgnoreError();
    if (kind == recon::LogRecordKind::kControl)
      recon::AddControlRecord(payload.ToString(), &control_).IgnoreError();
    return absl::OkStatus();
  }

 private:
  recon::ControlState control_;
};

// Checksums made right, so that what comes behind them is reached.
std::string WithRecords(const std::string& bytes) {
  std::string segment = recon::EncodeSegmentHead(recon::ApplyRules());
  recon::StreamingHash64 scratch;
  uint64_t sequence = 1;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(1 + static_cast<uint8_t>(bytes[at]), bytes.size() - at);
    const recon::ByteChain payload = recon::ByteChain::FromString(bytes.substr(at, size));
    const auto kind = static_cast<recon::LogRecordKind>(1 + size % 4);
    recon::AppendRecordHead(kind, sequence, sequence - 1, payload, &scratch, &segment);
    segment += payload.ToString();
    segment.resize(recon::PaddedBytes(segment.size()), '\0');
    sequence += bytes[at] == '!' ? 2 : 1;
    at += size;
  }
  return segment;
}

}  // namespace

// Any bytes as a segment, as a closing, and as records whose framing is right.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  recon::DecodeClosing(bytes).IgnoreError();
  recon::FirstSequenceOf(bytes).IgnoreError();
  Ignore ignore;
  for (const std::string& segment : {bytes, WithRecords(bytes)}) {
    recon::FaultyFileSystem files;
    (void)files.CreateDirectories("/log");
    files.SetContent("/log/" + recon::SegmentName(1), segment);
    files.SetContent("/log/" + recon::SegmentName(5), bytes);
    recon::ReadLog(&files, "/log", 1, &ignore).IgnoreError();
    recon::ReadLog(&files, "/log", 4, &ignore).IgnoreError();
    recon::CountLoggedPushes(&files, "/log").IgnoreError();
  }
  return 0;
}
