#include "server/access/audit_log.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

std::vector<nlohmann::json> LinesOf(const std::string& path) {
  std::vector<nlohmann::json> lines;
  const std::string text = ReadWholeFile(path);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

}  // namespace

TEST_CASE("the audit log has a line of JSON for each call, whatever is in it, for its owner alone",
          "[access]") {
  const TempDir directory;
  const std::string path = directory / "AUDIT";
  {
    const auto log = *AuditLog::Open(path);
    log->Note({absl::FromUnixSeconds(0), "Drain", "127.0.0.1:1", "token", "observer, operator", "", "ok"});
    log->Note({absl::FromUnixSeconds(1), "Register", "127.0.0.1:2", "nothing", "none",
               std::string("w\n\"\x1b[2J\xff") + std::string(5000, 'x'), "refused"});
  }
  const std::vector<nlohmann::json> lines = LinesOf(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["time"] == "1970-01-01T00:00:00+00:00");
  CHECK(lines[0]["call"] == "Drain");
  CHECK(lines[0]["roles"] == "observer, operator");
  CHECK(lines[0].count("detail") == 0);
  const auto detail = lines[1]["detail"].get<std::string>();
  CHECK(detail.substr(0, 6) == "w\n\"\x1b[2");
  CHECK(detail.size() < 1100);
  struct stat found {};
  REQUIRE(stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
}

TEST_CASE("the audit log keeps two files of bounded size, and follows no link", "[access]") {
  const TempDir directory;
  const std::string path = directory / "AUDIT";
  const auto log = *AuditLog::Open(path);
  constexpr int kLines = 20'000;
  for (int i = 0; i < kLines; ++i) {
    log->Note({absl::FromUnixSeconds(i), "Drain", "127.0.0.1:1", "token", "operator", std::string(1000, 'x'),
               "ok"});
    if (i % 100 == 0) log->Flush();
  }
  log->Flush();
  CHECK(std::filesystem::file_size(path) <= (8U << 20));
  CHECK(std::filesystem::file_size(path + ".1") <= (8U << 20));
  CHECK(LinesOf(path).back()["time"] == "1970-01-01T05:33:19+00:00");
  const std::string link = directory / "link";
  std::filesystem::create_symlink(path, link);
  CHECK(absl::IsFailedPrecondition(AuditLog::Open(link).status()));
  REQUIRE(mkfifo((directory / "fifo").c_str(), 0600) == 0);
  CHECK(absl::IsFailedPrecondition(AuditLog::Open(directory / "fifo").status()));
}

}  // namespace recon
