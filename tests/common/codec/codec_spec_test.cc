#include "common/codec/codec_spec.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("codec specs are parsed and printed back", "[encode]") {
  for (const char* text : {"fp32", "fp16", "bf16", "int8", "topk:0.01", "randomk:1", "threshold:0.001"}) {
    const auto spec = ParseCodecSpec(text);
    REQUIRE(spec.ok());
    CHECK(spec->ToString() == text);
  }
}

TEST_CASE("a wrong codec is refused with what was seen and what is allowed", "[encode]") {
  const auto refused = [](const char* text, const char* words) {
    const auto spec = ParseCodecSpec(text);
    INFO(text << ": " << spec.status().message());
    CHECK(absl::IsInvalidArgument(spec.status()));
    CHECK(absl::StrContains(spec.status().message(), words));
  };
  refused("", "known are");
  refused("fp8", "codec fp8 is unknown");
  refused("fp16:0.5", "takes no number");
  for (const char* text :
       {"topk", "topk:", "topk:x", "topk:0", "topk:1.01", "topk:-1", "topk:nan", "randomk:inf"}) {
    refused(text, "allowed are above 0 to 1");
  }
  for (const char* text : {"threshold", "threshold:0", "threshold:-1", "threshold:1e99", "threshold:nan"}) {
    refused(text, "allowed are numbers above 0");
  }
}

TEST_CASE("the first pattern that matches a group counts", "[encode]") {
  const auto rules = CodecRules::Parse("topk:0.01,no_decay=fp16,conv*=auto,conv1=fp32");
  REQUIRE(rules.ok());
  CHECK(rules->For("default").spec.ToString() == "topk:0.01");
  CHECK(rules->For("no_decay").spec.ToString() == "fp16");
  CHECK(rules->For("conv1").automatic);
  for (const char* text : {"", "topk:0.01,", "fp16,fp32", "fp16,=fp32", "fp16,a=", "fp16,a=b"}) {
    CHECK(absl::IsInvalidArgument(CodecRules::Parse(text).status()));
  }
}

}  // namespace recon
