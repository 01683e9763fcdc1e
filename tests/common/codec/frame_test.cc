#include "common/codec/frame.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/codec/codec.h"
#include "common/codec/page_hash.h"
#include "tests/support/temp_dir.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

// Two shards: three FP16 values and two FP32 values.
Frame SampleFrame() {
  Frame frame;
  frame.header.kind = static_cast<uint8_t>(FrameKind::kPushPull);
  frame.header.reply_codec = static_cast<uint8_t>(CodecId::kBf16);
  frame.header.worker = 3;
  frame.header.cluster_epoch = 5;
  frame.header.incarnation = 0x1122334455667788;
  frame.header.step = 41;
  frame.header.order_key = 4096;
  frame.header.samples = 64;
  frame.header.gradient_norm = 1.5f;
  frame.header.push_parts = 2;
  PartHeader half;
  half.shard = 0;
  half.codec = static_cast<uint8_t>(CodecId::kFp16);
  half.count = 3;
  half.version = 40;
  PartHeader full;
  full.shard = 7;
  full.count = 2;
  full.version = 39;
  frame.parts = {half, full};
  frame.payloads = {ByteChain::FromString(std::string("\x00\x3c\x00\x40\x00\xbc", 6)),
                    ByteChain::FromString(std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8))};
  return frame;
}

// Sets the checksum of altered bytes, so that the check behind it is the one that is tested.
void FixChecksum(std::string* bytes, size_t parts = 2) {
  const size_t head = std::min(bytes->size(), kFrameHeaderBytes + parts * kPartHeaderBytes);
  const uint64_t zero = 0;
  std::memcpy(bytes->data() + offsetof(FrameHeader, checksum), &zero, 8);
  const uint64_t checksum = Hash64(bytes->data(), head);
  std::memcpy(bytes->data() + offsetof(FrameHeader, checksum), &checksum, 8);
}

absl::Status DecodeStatus(const std::string& bytes) {
  return DecodeFrame(ByteChain::FromString(bytes)).status();
}

template <typename T>
std::string With(size_t offset, T value) {
  std::string bytes = EncodeFrame(SampleFrame()).ToString();
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  FixChecksum(&bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a frame comes back as it was, however the network cut it", "[frame]") {
  const std::string bytes = EncodeFrame(SampleFrame()).ToString();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    ByteChain chain = ByteChain::FromString(bytes.substr(0, cut));
    chain.Append(ByteChain::FromString(bytes.substr(cut)));
    const absl::StatusOr<Frame> frame = DecodeFrame(chain);
    REQUIRE(frame.ok());
    CHECK(frame->header.step == 41);
    CHECK(frame->header.incarnation == 0x1122334455667788);
    REQUIRE(frame->parts.size() == 2);
    CHECK(frame->parts[1].shard == 7);
    CHECK(frame->parts[1].version == 39);
    CHECK(frame->payloads[0].ToString() == SampleFrame().payloads[0].ToString());
    CHECK(frame->payloads[1].ToString() == SampleFrame().payloads[1].ToString());
  }
}

TEST_CASE("the wire format is what it was: golden bytes of version 2", "[frame]") {
  CHECK(ToHex(EncodeFrame(SampleFrame()).ToString()) + "\n" ==
        ReadWholeFile(InSources("tests/golden/frame_v2.hex")));
}

TEST_CASE("a frame with an exponent is of version 3: golden bytes", "[frame]") {
  Frame frame = SampleFrame();
  frame.parts[0].exponent = -9;
  const std::string bytes = EncodeFrame(frame).ToString();
  CHECK(ToHex(bytes) + "\n" == ReadWholeFile(InSources("tests/golden/frame_v3.hex")));
  const absl::StatusOr<Frame> decoded = DecodeFrame(ByteChain::FromString(bytes));
  REQUIRE(decoded.ok());
  CHECK(decoded->parts[0].exponent == -9);
  CHECK(decoded->parts[1].exponent == 0);
}

TEST_CASE("an exponent belongs to a push in fp16 or sparse-fp16, is in range, and makes the version",
          "[frame]") {
  const auto status = [](FrameKind kind, CodecId codec, int exponent, uint16_t version) {
    Frame frame = SampleFrame();
    frame.header.kind = static_cast<uint8_t>(kind);
    frame.parts[0].codec = static_cast<uint8_t>(codec);
    frame.parts[0].exponent = static_cast<int8_t>(exponent);
    const char sparse[] = "\x00\x00\x00\x00\x00\x00\x00";  // With its end, a page without entries.
    if (codec == CodecId::kSparseFp16) frame.payloads[0] = ByteChain::FromString(std::string(sparse, 8));
    std::string bytes = EncodeFrame(frame).ToString();
    std::memcpy(bytes.data() + offsetof(FrameHeader, version), &version, sizeof(version));
    FixChecksum(&bytes);
    return DecodeStatus(bytes);
  };
  for (const FrameKind kind : {FrameKind::kPush, FrameKind::kPushPull}) {
    for (const CodecId codec : {CodecId::kFp16, CodecId::kSparseFp16}) {
      for (const int exponent : {kExponentMin, -1, 1, kExponentMax}) {
        CHECK(status(kind, codec, exponent, 3).ok());
        CHECK(absl::StrContains(status(kind, codec, exponent, 2).message(), "exponent is"));
        CHECK(absl::StrContains(status(kind, codec, exponent, 4).message(), "version is 4, expected 2 to 3"));
      }
      CHECK(absl::StrContains(status(kind, codec, kExponentMin - 1, 3).message(), "expected -125 to 112"));
      CHECK(absl::StrContains(status(kind, codec, kExponentMax + 1, 3).message(), "exponent is 113"));
      CHECK(absl::StrContains(status(kind, codec, 0, 3).message(), "2 of a frame without an exponent"));
    }
    CHECK(absl::StrContains(status(kind, CodecId::kBf16, 1, 3).message(), "exponent is 1, expected 0"));
  }
  for (const FrameKind kind : {FrameKind::kInit, FrameKind::kReply}) {
    CHECK(absl::StrContains(status(kind, CodecId::kFp16, 1, 3).message(), "exponent is 1, expected 0"));
  }
}

TEST_CASE("a frame of any other length is refused", "[frame]") {
  const std::string bytes = EncodeFrame(SampleFrame()).ToString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string shorter = bytes.substr(0, size);
    CHECK(absl::IsInvalidArgument(DecodeStatus(shorter)));
    if (size >= kFrameHeaderBytes) {
      FixChecksum(&shorter);
      CHECK(absl::IsInvalidArgument(DecodeStatus(shorter)));
    }
  }
  CHECK(absl::IsInvalidArgument(DecodeStatus(bytes + "x")));
  CHECK(absl::IsInvalidArgument(DecodeStatus(std::string(limits::kFrameBytesMax + 1, 'x'))));
}

TEST_CASE("a changed byte of header or table never gets through", "[frame]") {
  const std::string bytes = EncodeFrame(SampleFrame()).ToString();
  for (size_t at = 0; at < kFrameHeaderBytes + 2 * kPartHeaderBytes; ++at) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ mask);
      INFO("byte " << at);
      CHECK(absl::IsInvalidArgument(DecodeStatus(altered)));
    }
  }
}

TEST_CASE("fields out of range are refused by name, even under a right checksum", "[frame]") {
  const auto expect = [](const std::string& bytes, const std::string& word) {
    const absl::Status status = DecodeStatus(bytes);
    INFO(status.message());
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), word));
  };
  const size_t part = kFrameHeaderBytes;
  expect(With<uint32_t>(offsetof(FrameHeader, magic), 1), "magic");
  expect(With<uint16_t>(offsetof(FrameHeader, version), 1), "version is 1, expected 2 to 3");
  expect(With<uint8_t>(offsetof(FrameHeader, kind), 0), "kind is 0");
  expect(With<uint8_t>(offsetof(FrameHeader, kind), 8), "kind is 8");
  expect(With<uint8_t>(offsetof(FrameHeader, reply_codec), 9), "reply codec is 9");
  expect(With<uint8_t>(part + offsetof(PartHeader, has_learning_rate), 2), "learning rate's mark is 2");
  expect(With<double>(part + offsetof(PartHeader, learning_rate), 0.5),
         "learning rate is 0.5, expected none");
  expect(With<uint32_t>(offsetof(FrameHeader, part_count), 0), "part count is 0");
  expect(With<uint32_t>(offsetof(FrameHeader, part_count), 0xFFFFFFFF), "part count");
  expect(With<uint32_t>(offsetof(FrameHeader, server_parts), 3), "shards on this server");
  expect(With<uint64_t>(offsetof(FrameHeader, payload_bytes), 15), "length");
  expect(With<uint8_t>(part + offsetof(PartHeader, codec), 77), "codec is 77");
  expect(With<uint8_t>(part + offsetof(PartHeader, reserved), 1), "reserved");
  expect(With<uint32_t>(part + offsetof(PartHeader, count), 4), "payload bytes is 6, expected 8");
  expect(With<uint32_t>(part + offsetof(PartHeader, payload_bytes), 0), "payload bytes");
}

TEST_CASE("a pull has hashes of a shard's pages, or none", "[frame]") {
  Frame pull = SampleFrame();
  pull.header.kind = static_cast<uint8_t>(FrameKind::kPull);
  pull.parts[0].count = 65'537;
  const std::string hashes(2 * kPageHashBytes, 'x');
  pull.payloads = {ByteChain::FromString(hashes), ByteChain()};
  const absl::StatusOr<Frame> decoded = DecodeFrame(EncodeFrame(pull));
  REQUIRE(decoded.ok());
  CHECK(decoded->payloads[0].ToString() == hashes);
  CHECK(decoded->payloads[1].size() == 0);
  const auto refusal = [&](const auto& change) {
    Frame frame = pull;
    change(&frame);
    return std::string(DecodeFrame(EncodeFrame(frame)).status().message());
  };
  CHECK_THAT(refusal([](Frame* x) { x->parts[0].count = 65'536; }),
             Catch::Contains("payload bytes is 32, expected 16 of hashes"));
  CHECK_THAT(refusal([](Frame* x) { x->payloads[1] = ByteChain::FromString("12345678"); }),
             Catch::Contains("payload bytes is 8"));
  CHECK_THAT(refusal([](Frame* x) { x->parts[0].codec = static_cast<uint8_t>(CodecId::kInt8); }),
             Catch::Contains("codec of hashes is 3"));
}

TEST_CASE("values that were rounded have the hash of those they were rounded from", "[frame]") {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.1f, static_cast<int>(i) - 500);
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    std::vector<uint8_t> bytes(EncodedBytes(codec, values.size()));
    std::vector<float> rounded(values.size());
    Encode(codec, values.data(), values.size(), bytes.data());
    Decode(codec, bytes.data(), values.size(), rounded.data());
    CHECK(PageHash(codec, rounded.data(), rounded.size()) == PageHash(codec, values.data(), values.size()));
    rounded[0] = 1;
    CHECK(PageHash(codec, rounded.data(), rounded.size()) != PageHash(codec, values.data(), values.size()));
  }
}

}  // namespace recon
