#include "common/codec/codec_spec.h"

#include <fnmatch.h>

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

struct Name {
  CodecKind kind;
  const char* name;
};
constexpr Name kNames[] = {
    {CodecKind::kFp32, "fp32"},           {CodecKind::kFp16, "fp16"}, {CodecKind::kBf16, "bf16"},
    {CodecKind::kInt8, "int8"},           {CodecKind::kTopK, "topk"}, {CodecKind::kRandomK, "randomk"},
    {CodecKind::kThreshold, "threshold"},
};

absl::StatusOr<CodecRules::Choice> ParseChoice(absl::string_view text) {
  CodecRules::Choice choice;
  choice.automatic = text == "auto";
  if (choice.automatic) return choice;
  RECON_ASSIGN_OR_RETURN(choice.spec, ParseCodecSpec(text));
  return choice;
}

}  // namespace

CodecId CodecSpec::wire_codec() const {
  switch (kind) {
    case CodecKind::kFp32:
      return CodecId::kFp32;
    case CodecKind::kFp16:
      return CodecId::kFp16;
    case CodecKind::kBf16:
      return CodecId::kBf16;
    case CodecKind::kInt8:
      return CodecId::kInt8;
    default:
      return CodecId::kSparseFp16;
  }
}

std::string CodecSpec::ToString() const {
  std::string name;
  for (const Name& known : kNames) {
    if (known.kind == kind) name = known.name;
  }
  if (kind == CodecKind::kThreshold) return absl::StrCat(name, ":", threshold);
  return sparse() ? absl::StrCat(name, ":", ratio) : name;
}

absl::StatusOr<CodecSpec> ParseCodecSpec(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const bool has_number = text.find(':') != absl::string_view::npos;
  for (const Name& known : kNames) {
    if (parts.first != known.name) continue;
    CodecSpec spec;
    spec.kind = known.kind;
    if (!spec.sparse()) {
      if (!has_number) return spec;
      return absl::InvalidArgumentError(absl::StrCat("codec ", text, ": ", known.name, " takes no number"));
    }
    double number = 0;
    const bool is_number = absl::SimpleAtod(parts.second, &number) && std::isfinite(number);
    if (spec.kind == CodecKind::kThreshold) {
      spec.threshold = static_cast<float>(number);
      if (is_number && spec.threshold > 0 && std::isfinite(spec.threshold)) return spec;
      return absl::InvalidArgumentError(
          absl::StrCat("codec ", text, ": magnitude is \"", parts.second, "\", allowed are numbers above 0"));
    }
    spec.ratio = number;
    if (is_number && number > 0 && number <= 1) return spec;
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", text, ": ratio is \"", parts.second, "\", allowed are above 0 to 1"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "codec ", text,
      " is unknown; known are auto, fp32, fp16, bf16, int8, topk:RATIO, randomk:RATIO, threshold:MAGNITUDE"));
}

absl::StatusOr<CodecRules> CodecRules::Parse(const std::string& text) {
  CodecRules rules;
  rules.text_ = text;
  bool first = true;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    if (first) {
      RECON_ASSIGN_OR_RETURN(rules.default_, ParseChoice(word));
      first = false;
      continue;
    }
    const std::pair<std::string, std::string> rule = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (rule.first.empty() || word.find('=') == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec rule \"", word, "\": expected GROUP=CODEC behind the first codec"));
    }
    RECON_ASSIGN_OR_RETURN(const Choice choice, ParseChoice(rule.second));
    rules.patterns_.emplace_back(rule.first, choice);
  }
  return rules;
}

const CodecRules::Choice* CodecRules::Named(const std::string& group) const {
  for (const auto& [pattern, choice] : patterns_) {
    if (pattern == group) return &choice;
  }
  return nullptr;
}

const CodecRules::Choice& CodecRules::For(const std::string& group) const {
  for (const auto& [pattern, choice] : patterns_) {
    if (fnmatch(pattern.c_str(), group.c_str(), 0) == 0) return choice;
  }
  return default_;
}

}  // namespace recon
