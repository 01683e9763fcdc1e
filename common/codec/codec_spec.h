#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/codec/wire_format.h"

namespace recon {

// How a group's gradients are encoded.
enum class CodecKind { kFp32, kFp16, kBf16, kInt8, kTopK, kRandomK, kThreshold };

struct CodecSpec {
  CodecKind kind = CodecKind::kFp16;
  double ratio = 1;     // topk, randomk: share of the values that is sent, in (0, 1].
  float threshold = 0;  // threshold: smallest magnitude that is sent.

  bool sparse() const { return kind >= CodecKind::kTopK; }
  // Whether encoding loses what error feedback would keep back.
  bool keeps_back() const { return sparse() || kind == CodecKind::kInt8; }
  // How it looks on the wire.
  CodecId wire_codec() const;
  // "fp16", "topk:0.01", ...
  std::string ToString() const;
  bool operator==(const CodecSpec& other) const {
    return kind == other.kind && ratio == other.ratio && threshold == other.threshold;
  }
};

// fp32, fp16, bf16, int8, topk:RATIO, randomk:RATIO or threshold:MAGNITUDE; InvalidArgument, with what was
// seen and what is allowed, otherwise.
absl::StatusOr<CodecSpec> ParseCodecSpec(absl::string_view text);

// What --codec says: a codec or "auto" for every group, and others for groups whose names match a pattern, as
// in "topk:0.01,no_decay=fp16,conv*=auto". The first pattern that matches counts.
class CodecRules {
 public:
  struct Choice {
    bool automatic = false;
    CodecSpec spec;  // Unless automatic.
  };

  // InvalidArgument as above, or for a pattern without a name.
  static absl::StatusOr<CodecRules> Parse(const std::string& text);

  const Choice& For(const std::string& group) const;
  // What is said of this group by its whole name, not by a pattern; null: nothing.
  const Choice* Named(const std::string& group) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Choice default_;
  std::vector<std::pair<std::string, Choice>> patterns_;
};

}  // namespace recon
