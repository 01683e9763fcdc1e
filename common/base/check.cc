#include "common/base/check.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"

namespace recon::check_internal {
namespace {

[[noreturn]] void Die(absl::string_view condition, absl::string_view values, const char* file, int line,
                      absl::string_view message) {
  // Files are named from the source folder on, as "./common/base/lane.cc" (-ffile-prefix-map).
  WriteLastLine(absl::StrCat("a broken invariant ends this process: ", condition, values,
                             message.empty() ? "" : absl::StrCat(": ", message), " (",
                             absl::StripPrefix(file, "./"), ":", line, ")"));
  std::abort();
}

}  // namespace

std::string Show(int64_t value) { return absl::StrCat(value); }
std::string Show(uint64_t value) { return absl::StrCat(value); }
std::string Show(double value) { return absl::StrCat(value); }
std::string Show(const void* value) {
  return value == nullptr ? "null" : absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(value)));
}
std::string Show(absl::string_view value) { return absl::StrCat("\"", value, "\""); }

void Fail(const char* condition, const char* file, int line, absl::string_view message) {
  Die(condition, "", file, line, message);
}

void FailShown(const char* condition, const char* file, int line, const std::string& a, const std::string& b,
               absl::string_view message) {
  Die(condition, absl::StrCat(", values ", a, " and ", b), file, line, message);
}

}  // namespace recon::check_internal
